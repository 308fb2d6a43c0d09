"""Judges what queues show after a crash: every work of a run is wholly there, wholly absent, or wholly in doubt.

What may have become of each work is known from the run. For all combinations of that the oracle says what every queue
would show, and what is shown has to be one of these: so a message that is lost, doubled, moved or half of something
agrees with none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product

from holdfast import Empty, FlushPolicy, PersistentQueue, TransactionStateError
from holdfast.queue.options.queue_options import Mode
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.transaction_runs import Fate, Moment, TransactionRun, Work, open_queue

ALL = 10**6  # more messages than any run has

Fates = Mapping[str, Fate]
Offsets = Mapping[str, Mapping[bytes, int]]
"""By queue, the offsets that calls have returned for payloads."""


@dataclass(frozen=True)
class Seen:
    """What queues show.

    Attributes
    ----------
    waiting : dict of str to tuple of bytes
        By queue, what its group would be given, in that order.
    in_doubt : dict of str to dict
        By queue, the number of puts and of acknowledgements of each transaction that is in doubt.
    """

    waiting: Mapping[str, tuple[bytes, ...]]
    in_doubt: Mapping[str, Mapping[str, tuple[int, int]]]


@contextmanager
def opened(
    storage: SimulatedStorage, policy: FlushPolicy, names: Sequence[str], modes: Mapping[str, Mode]
) -> Iterator[dict[str, PersistentQueue]]:
    """Open queues in this order; one that is not on the disk yet is left out unless its mode makes it."""
    with ExitStack() as stack:
        queues: dict[str, PersistentQueue] = {}
        for name in names:
            queues[name] = stack.enter_context(open_queue(storage, name, policy, mode=modes.get(name, "exclusive")))
        yield queues


def look(queues: Mapping[str, PersistentQueue], offsets: Offsets) -> Seen:
    """Return what open queues show; every message has to have the offset that was told for it."""
    in_doubt = {}
    for name, queue in queues.items():
        found = queue.prepared()
        assert not any(each.damage for each in found), f"damage where there was a crash: {found}"
        in_doubt[name] = {each.id: (each.put_count, each.ack_count) for each in found}
        assert len(in_doubt[name]) == len(found), f"one id twice: {found}"
    waiting: dict[str, tuple[bytes, ...]] = {}
    for name, queue in queues.items():
        messages = queue.peek(ALL)
        assert not queue.recovery.progress_damage, f"recovery invents damage: {queue.recovery}"
        for each in messages:
            told = offsets.get(name, {}).get(each.payload, each.offset)
            assert each.offset == told, f"{each.payload[:30]!r} was put at {told} and is at {each.offset}"
        numbers = [each.offset for each in messages]
        assert numbers == sorted(set(numbers)), f"{name}: {numbers}"
        waiting[name] = tuple(each.payload for each in messages)
    return Seen(waiting, in_doubt)


def told(run: TransactionRun, before: Moment) -> Offsets:
    """Return the offsets that calls had returned up to a moment."""
    return {
        name: {each: known[each] for key in works for each in run.works[key].puts[name] if each in known}
        for name, works in before.log_order.items()
        for known in (run.offsets[name],)
    }


def expected(works: Mapping[str, Work], fates: Fates, order: Mapping[str, Sequence[str]], names: Sequence[str]) -> Seen:
    """Return what queues show where each work has had this fate; ``order`` is that of the works in each log."""
    waiting: dict[str, tuple[bytes, ...]] = {}
    in_doubt: dict[str, dict[str, tuple[int, int]]] = {}
    for name in names:
        taken = {
            payload
            for work in works.values()
            if fates[work.name] is not Fate.ABSENT
            for payload in work.acks.get(name, ())
        }
        payloads = [payload for key in order[name] if fates[key] is Fate.COMMITTED for payload in works[key].puts[name]]
        waiting[name] = tuple(payload for payload in payloads if payload not in taken)
        in_doubt[name] = {
            work.id: (len(work.puts.get(name, ())), len(work.acks.get(name, ())))
            for work in works.values()
            if fates[work.name] is Fate.IN_DOUBT and name in work.queues
        }
    return Seen(waiting, in_doubt)


@dataclass(frozen=True)
class Verdict:
    """What the oracle takes a state for: the order of the works in each log, told offsets, and the fate of each work.

    Where all of the messages of a work are held or finished, what shows is the same with it and without it: then there
    are several explanations.
    """

    explanations: tuple[Fates, ...]
    order: Mapping[str, tuple[str, ...]]
    offsets: Offsets


def judge(run: TransactionRun, seen: Seen, before: Moment, under_way: Moment, *, killed: bool) -> Verdict:
    """Return the fates that explain what is seen; raises AssertionError where none that is allowed does."""
    names = list(seen.waiting)
    order = {
        name: tuple(dict.fromkeys([*before.log_order.get(name, ()), *under_way.log_order.get(name, ())]))
        for name in names
    }
    sequence = {name: [key for key in order[name] if _is_appended(run.works[key], name, before)] for name in names}
    allowed = {}
    for key in run.works:
        least, most = (each.killed if killed else each.powerless for each in (before, under_way))
        may = least.get(key, Fate.ABSENT) | most.get(key, Fate.ABSENT)
        allowed[key] = list(may)
    closest, explanations = [], []
    for choice in product(*allowed.values()):
        fates = dict(zip(allowed, choice, strict=True))
        if not _is_prefix(fates, sequence):
            continue
        candidate = expected(run.works, fates, order, names)
        if candidate == seen:
            explanations.append(fates)
        closest.append({key: fate.name for key, fate in fates.items()})
    if explanations:
        return Verdict(tuple(explanations), order, told(run, before))
    works = [_work(each) for each in run.works.values()]
    raise AssertionError(f"{_short(seen)}\nis none of\n{closest[:8]}\nfor {works}")


def _is_appended(work: Work, name: str, before: Moment) -> bool:
    """Whether a work went into a log where it stands in its order; what was prepared may follow at a recovery.

    One of which nobody knew whether it did may be missing before others.
    """
    if len(before.killed.get(work.name, Fate.ABSENT)) > 1:
        return False
    is_prepared = before.killed.get(work.name) is Fate.IN_DOUBT or len(work.queues) > 1
    return work.name in before.log_order.get(name, ()) or not is_prepared


def _is_prefix(fates: Fates, order: Mapping[str, Sequence[str]]) -> bool:
    """Whether what is missing of each log is its end."""
    for works in order.values():
        there = [fates[key] is Fate.COMMITTED for key in works]
        if there != sorted(there, reverse=True):
            return False
    return True


def decide_all(
    storage: SimulatedStorage, run: TransactionRun, verdict: Verdict, *, commit: bool, names: Sequence[str]
) -> None:
    """Decide what is in doubt, twice, check what the queues show, take the power away, and look and ask once more."""
    order = dict(verdict.order)
    ids: dict[str, tuple[str, range]] = {}
    decided: dict[str, Fate] = {}
    with opened(storage, run.policy, names, {}) as queues:
        for key, work in run.works.items():
            if verdict.explanations[0][key] is not Fate.IN_DOUBT:
                continue
            (name,) = work.queues
            decided[key] = Fate.COMMITTED if commit else Fate.ABSENT
            order[name] = (*(each for each in order[name] if each != key), key) if work.puts else order[name]
            ids[key] = name, _decide(queues[name], work.id, commit=commit)
        shown = look(queues, verdict.offsets)
        may = [expected(run.works, {**fates, **decided}, order, names) for fates in verdict.explanations]
        assert shown in may, f"after deciding: {_short(shown)}\nis none of {[_short(each) for each in may]}"
        for key, (name, offsets) in ids.items():
            assert _decide(queues[name], run.works[key].id, commit=commit) == offsets, "another answer the second time"
            assert _is_refused(queues[name], run.works[key].id, commit=not commit), "both verdicts were taken"
        left = storage.crash_dropping_unsynced()
    with opened(left, run.policy, names, {}) as queues:
        again = look(queues, verdict.offsets)
        assert again == shown, f"after deciding and a loss of power: {_short(again)}\nnot {_short(shown)}"
        for key, (name, offsets) in ids.items():
            assert _decide(queues[name], run.works[key].id, commit=commit) == offsets, "forgot what it had decided"


def _decide(queue: PersistentQueue, transaction_id: str, *, commit: bool) -> range:
    if commit:
        return queue.commit_prepared(transaction_id)
    queue.abort_prepared(transaction_id)
    return range(0)


def _is_refused(queue: PersistentQueue, transaction_id: str, *, commit: bool) -> bool:
    try:
        _decide(queue, transaction_id, commit=commit)
    except TransactionStateError:
        return True
    return False


def work_on(storage: SimulatedStorage, run: TransactionRun, verdict: Verdict, seen: Seen) -> None:
    """Put, take everything, close, take the power away: the work is there, and no offset was given twice."""
    names = list(seen.waiting)
    with opened(storage, run.policy, names, {}) as queues:
        for name, queue in queues.items():
            used = [
                verdict.offsets[name][payload]
                for work in run.works.values()
                if all(fates[work.name] is not Fate.ABSENT for fates in verdict.explanations)
                for payload in (*work.puts.get(name, ()), *work.acks.get(name, ()))
                if payload in verdict.offsets.get(name, {})
            ]
            messages = queue.peek(ALL)
            offset = queue.put(b"after the crash")
            assert offset > max([*used, *(each.offset for each in messages)], default=-1), "an offset was given twice"
            taken: list[bytes] = []
            with suppress(Empty):
                while True:
                    taken += queue.get_many(ALL, timeout=0)
            assert tuple(taken) == (*seen.waiting[name], b"after the crash"), "not what was shown"
    left = storage.crash_dropping_unsynced()
    with opened(left, run.policy, names, {}) as queues:
        again = look(queues, {})
        assert not any(again.waiting.values()), "closing made it durable"
        assert again.in_doubt == seen.in_doubt


def _short(seen: Seen) -> str:
    waiting = {name: [each[:12] for each in payloads] for name, payloads in seen.waiting.items()}
    return f"waiting {waiting}, in doubt {seen.in_doubt}"


def _work(work: Work) -> str:
    puts = {name: [each[:12] for each in payloads] for name, payloads in work.puts.items()}
    acks = {name: [each[:12] for each in payloads] for name, payloads in work.acks.items()}
    return f"{work.name} ({work.id}): puts {puts}, acks {acks}"
