"""A random history of clients and owners, and each crash behind each storage operation of it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count

from holdfast import Empty, Full, HoldfastError, StaleReceiptError
from holdfast.queue.engine.configuring import stored_settings
from holdfast.queue.prepared.prepared_transactions import find_prepared
from holdfast.queue.protocol.messages import Commit, Prepare, Put, Settle, Take, Taken, Verb
from proof.faults.world import begin_life, repeatable_bytes
from proof.owner_deaths.books import CHANGED, GROUPS, Asked, Books, BrokenPromiseError, expect
from proof.owner_deaths.callers import BATCH_MAX, Caller, named
from proof.owner_deaths.staged_files import StagedFiles
from support.builders.clocks import FakeClock
from support.builders.jobs import ROOT
from support.owners.served import Client, FakeSessions, Served
from support.storages.simulated_storage import SimulatedStorage

CALLERS = 3
SLOW = GROUPS[1]
ALL = 100


@dataclass
class Tally:
    """What was tried."""

    rounds: int = 0
    kills: int = 0
    power_cuts: int = 0
    sent_again: int = 0

    def add(self, other: Tally) -> None:
        """Add what another one counts."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class History:
    """Three clients and their owners, one after the other.

    Parameters
    ----------
    seed : int
        Of all that is drawn.

    Raises
    ------
    BrokenPromiseError
        From each method: what the queue must not have done.
    """

    def __init__(self, seed: int) -> None:
        self.tally = Tally()
        self._rng = random.Random(seed)
        self._maxsize = self._rng.choice((0, BATCH_MAX))
        self._clock = FakeClock()
        self._sessions = FakeSessions()
        self._books = Books()
        self._files = StagedFiles()
        self._served = self._owner(SimulatedStorage(), self._clock, self._sessions)
        self._callers: list[Caller] = []
        self._clients: dict[Caller, Client] = {}
        self._count = 0
        client = self._served.connect()
        client.attach(SLOW, is_new=True)
        with suppress(Empty):
            client.take(1)  # so that its group begins
        self._served.disk.replay_from_here()  # all of that is durable
        while len(self._callers) < CALLERS:
            self._begin_caller()

    def _owner(self, storage: SimulatedStorage, clock: FakeClock, sessions: FakeSessions) -> Served:
        return Served(storage, clock, sessions, max_deliveries=None, maxsize=self._maxsize)

    def _begin_caller(self) -> None:
        client = self._served.connect()
        caller = Caller(self._count, client.session, GROUPS[self._count % len(GROUPS)])
        self._count += 1
        self._callers.append(caller)
        self._clients[caller] = client

    # -- Rounds ------------------------------------------------------------------------------------------------------

    def run(self, rounds: int) -> Tally:
        """Live so many rounds, each with all its crashes, and judge what is left at the end."""
        try:
            for _ in range(rounds):
                self._round()
            self._judge_end(self._served, self._books, [caller.asked for caller in self._callers])
        finally:
            self._served.close()
        return self.tally

    def _round(self) -> None:
        self.tally.rounds += 1
        asking = self._rng.sample(self._callers, self._rng.randint(1, CALLERS))
        for caller in asking:
            if caller.asked is None:
                caller.choose(self._rng, self._books)
            else:
                self.tally.sent_again += 1
                caller.asked.is_again = True
            write_missing(self._files, self._served, caller.session, caller.asked)
        waiting = [(caller.session, caller.asked) for caller in self._callers]
        answers = self._ask(asking)
        disk = self._served.disk
        for crash in disk.prefix_crashes():
            if crash.kept:
                self.tally.kills += 1
                self._judge_kill(crash.storage, waiting, disk.replayed_from + crash.operation_count)
            else:
                self.tally.power_cuts += 1
                self._judge_power_cut(crash.storage, waiting)
        self._go_on(answers)

    def _ask(self, asking: Iterable[Caller]) -> dict[Caller, int]:
        """Have a round done; return the ids of the requests, whose answers are there."""
        requests: dict[Caller, int] = {}
        for caller in asking:
            assert caller.asked is not None
            requests[caller] = self._clients[caller].send(caller.asked.request, caller.asked.payloads_sent)
        for caller in self._callers:
            arrived = caller.arrived()
            if arrived is not None and self._rng.random() < 0.2:
                self._clients[caller].send(arrived)
            elif caller.last is not None and caller.has_copies and self._rng.random() < 0.1:
                self._send_old_copy(caller, caller.last)
        self._served.end_round()
        return requests

    def _send_old_copy(self, caller: Caller, last: Asked) -> None:
        """Send a request once more that was answered; it may be refused, and changes nothing: the end shows."""
        if not isinstance(last.request, Take) and last.step != "configure":  # it could undo a later one
            self._clients[caller].send(last.request, last.payloads_sent)

    def _go_on(self, answers: Mapping[Caller, int]) -> None:
        """Let the owner live, close, or die behind an operation of this round; some clients die, too."""
        disk, fate = self._served.disk, self._rng.random()
        if fate < 0.45:
            crash = self._rng.choice([crash for crash in disk.prefix_crashes() if crash.kept])
            for caller in self._callers:
                if caller.asked is not None:
                    caller.asked = as_of(caller.asked, disk.replayed_from + crash.operation_count)
            self._succeed(crash.storage)
        else:
            for caller, request_id in answers.items():
                assert caller.asked is not None
                waiting = [each.asked for each in self._callers]
                judge_answer(self._books, caller.asked, self._clients[caller], request_id, waiting)
                if caller.asked.is_staged:
                    self._files.end(caller.asked, disk)
                caller.has_answer()
            self.tally.power_cuts += 1
            self._judge_power_cut(
                disk.crash_dropping_unsynced(), [(caller.session, caller.asked) for caller in self._callers]
            )
            if fate < 0.55:
                self._succeed(disk)
            else:
                disk.replay_from_here()
        if self._rng.random() < 0.15:
            self._end_caller(self._rng.choice(self._callers))

    def _succeed(self, storage: SimulatedStorage) -> None:
        """Have another owner begin, which is perhaps killed at once, and another one after that."""
        is_killed = storage is not self._served.disk
        for caller in self._callers:
            caller.has_copies = False
        self._served.close()  # if it was killed, its disk is its own by now; this ends its threads
        storage.replay_from_here()
        if is_killed:
            self._lock_files(storage)
        self._served = self._connected(storage)
        if self._rng.random() < 0.3:
            kept = [crash.storage for crash in self._served.disk.prefix_crashes() if crash.kept]
            self._served.close()
            storage = self._rng.choice(kept)
            self._lock_files(storage)
            self._served = self._connected(storage)

    def _lock_files(self, storage: SimulatedStorage) -> None:
        self._files = StagedFiles()
        self._files.lock(storage, [caller.asked for caller in self._callers])

    def _connected(self, storage: SimulatedStorage) -> Served:
        served = self._owner(storage, self._clock, self._sessions)
        for caller in self._callers:
            client = self._clients[caller] = served.connect(caller.session)
            for resume in named(self._books, caller.session, caller.asked):
                client.ask(resume)
        return served

    def _end_caller(self, caller: Caller) -> None:
        """Kill a client; another one begins."""
        self._callers.remove(caller)
        self._sessions.living.discard(caller.session)
        self._clients.pop(caller).disconnect()
        if caller.asked is not None and caller.asked.is_staged:
            self._files.release(caller.asked)
        self._books.died(caller.session, caller.asked)
        self._begin_caller()

    # -- Judging -----------------------------------------------------------------------------------------------------

    def _judge_kill(
        self, storage: SimulatedStorage, waiting: list[tuple[int, Asked | None]], operation_count: int
    ) -> None:
        """Have all clients ask a successor again, and judge what it answers, and what is left."""
        files, asks = StagedFiles(), [each and as_of(each, operation_count) for _, each in waiting]
        files.lock(storage, asks)
        with self._successor(storage, FakeSessions(*self._sessions.living)) as served:
            books = self._books.copy()
            for (session, _), asked in zip(waiting, asks, strict=True):
                client = served.connect(session)
                for resume in named(books, session, asked):
                    client.ask(resume)
                if asked is not None:
                    write_missing(files, served, session, asked)
                    request_id = client.send(asked.request, asked.payloads_sent)
                    served.end_round()
                    judge_answer(books, asked, client, request_id, asks)
            self._judge_end(served, books, [])

    def _judge_power_cut(self, storage: SimulatedStorage, waiting: list[tuple[int, Asked | None]]) -> None:
        with self._successor(storage, FakeSessions()) as served:
            self._judge_end(served, self._books.copy(), [asked for _, asked in waiting])

    @contextmanager
    def _successor(self, storage: SimulatedStorage, sessions: FakeSessions) -> Iterator[Served]:
        served = self._owner(storage, FakeClock(self._clock.time_ns(), self._clock.monotonic()), sessions)
        try:
            yield served
        finally:
            served.close()

    @staticmethod
    def _judge_end(served: Served, books: Books, unanswered: Iterable[Asked | None]) -> None:
        """Kill all clients; decide what is in doubt, and judge what a new one can take then."""
        served.sessions.living.clear()
        served.sweep()
        client = served.connect()
        for held in books.judge_doubts(in_doubt(served), [each for each in unanswered if each is not None]):
            done = client.do("commit_prepared" if held.is_to_commit else "abort_prepared", id=held.id)
            books.decided(held, done)
        books.judge_settings(stored(served))
        numbers = count(1)
        for group in GROUPS:
            left: dict[int, bytes] = {}
            with suppress(Empty):
                while True:
                    reply = client.ask(Take(group, client.number(next(numbers)), ALL, None, 0))
                    assert isinstance(reply, Taken)
                    for (offset, *_), payload in zip(reply.messages, client.payloads, strict=True):
                        expect(offset not in left, f"offset {offset} is in two hands")
                        left[offset] = payload
            books.judge(group, left)


def stored(served: Served) -> dict[tuple[str, str], float]:
    """Return the settings on the disk that clients change, by group and name; the group is empty for the queue's."""
    listed = [each for group in GROUPS for each in stored_settings(served.storage, ROOT, group)]
    return {(each.group or "", each.name): each.value for each in listed if each.name in CHANGED}


def in_doubt(served: Served) -> dict[str, tuple[str, list[int]]]:
    """Return what is in doubt: by id, the group and the messages that are held."""
    found: dict[str, tuple[str, list[int]]] = {}
    for each in find_prepared(served.queue.handle):
        held = [(group, [offset for run in vote.offsets for offset in run]) for group, vote in each.votes]
        expect(len(held) < 2 and not each.damage, f"{each.id} is damaged, or has more than one vote")
        found[each.id] = held[0] if held else ("", [])
    return found


def as_of(asked: Asked, operation_count: int) -> Asked:
    """Return a request as it is on a disk that has seen so many operations only: its file may not be whole there."""
    is_whole = asked.written_at is not None and asked.written_at <= operation_count
    return replace(asked, written_at=0 if is_whole else None, is_again=True)


def write_missing(files: StagedFiles, served: Served, session: int, asked: Asked | None) -> None:
    """Have a client write the file of its request, unless it has."""
    if asked is not None and asked.is_staged and asked.written_at is None:
        files.write(served.queue.handle, asked, session)


def judge_answer(books: Books, asked: Asked, client: Client, request_id: int, waiting: Iterable[Asked | None]) -> None:
    """Judge an answer; ``waiting`` are all requests without one yet."""
    try:
        reply = client.reply(request_id)
    except Empty:
        assert isinstance(asked.request, Take), "nothing else may find nothing"
        books.finished(asked.request)
        return
    except Full:
        books.found_full(asked)
        return
    except StaleReceiptError as error:
        if asked.step != "prepare" or not asked.is_again:
            raise BrokenPromiseError(f"{_name(asked)} was refused: {error!r}") from error
        books.was_aborted(asked)
        return
    except HoldfastError as error:
        raise BrokenPromiseError(f"{_name(asked)} was refused: {error!r}") from error
    expect(reply is not None, f"{_name(asked)} has no answer")
    assert reply is not None
    books.answered(asked, reply, client.payloads, waiting)


def _name(asked: Asked) -> str:
    request = asked.request
    if isinstance(request, Settle):
        return f"{request.verb} of {asked.offsets}"
    if isinstance(request, Put | Commit):
        return f"a {type(request).__name__.lower()} of {len(asked.payloads)} that acknowledges {asked.offsets}"
    if isinstance(request, Verb | Prepare):
        return f"{asked.step} {asked.held}"
    return f"take {request.number:x}"


def judged_history(seed: int, rounds: int) -> tuple[Tally, str]:
    """Live a history; return what was tried, and the promise that was broken, if any. A seed always lives the same."""
    with repeatable_bytes():
        begin_life(f"owner deaths {seed}")
        history = History(seed)
        try:
            history.run(rounds)
        except BrokenPromiseError as broken:
            return history.tally, f"round {history.tally.rounds}: {broken}"
    return history.tally, ""
