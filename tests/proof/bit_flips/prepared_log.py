"""A queue whose prepared log waits, and what a flipped bit of its segment may cost: no more than the entry it hits.

The segment has what two groups have prepared: undecided, committed, aborted, with votes and without. A second reader of
the format (``support/models/prepared_log_model.py``) says for each flip which entries are whole.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from holdfast import CorruptionError, PersistentQueue, TransactionStateError, verify
from holdfast.persistence.filesystem.layout import queue_directory
from proof.bit_flips.look import take_all
from proof.bit_flips.oracle import Verdict
from proof.bit_flips.places import HARMLESS, WITNESS, Region
from proof.bit_flips.victim import (
    ABORTED,
    AUDIT,
    COMMITTED,
    DEFAULT,
    MERGED_FILE_BYTES,
    ROOT,
    Victim,
    closed,
    open_victim,
    payload,
)
from support.builders.clocks import FakeClock
from support.models.prepared_log_model import ModelLog, read_log
from support.owners.second_groups import open_beside
from support.storages.simulated_storage import SimulatedStorage

MESSAGE_COUNT = 6


@dataclass(frozen=True)
class Prepared:
    """A transaction: what it puts, and who acknowledges how many messages in it; "": nobody."""

    puts: tuple[bytes, ...]
    group: str = ""
    ack_count: int = 0


TRANSACTIONS = {
    COMMITTED: Prepared((b"zero",), DEFAULT, 1),
    "both": Prepared((b"one \x02", b""), DEFAULT, 2),
    ABORTED: Prepared((b"never",), AUDIT, 1),
    "other": Prepared((b"two",), AUDIT, 1),
    "puts": Prepared((b"three",)),
}
UNDECIDED = {name: each for name, each in TRANSACTIONS.items() if name not in (COMMITTED, ABORTED)}


def build_prepared() -> Victim:
    """Make the queue: what has ended stands between what waits."""
    storage, clock = SimulatedStorage(), FakeClock()
    with open_victim(storage, clock, file_bytes=MERGED_FILE_BYTES) as queue:
        queue.groups.create(AUDIT)
        for number in range(MESSAGE_COUNT):
            queue.put(payload(number))
        with open_beside(queue, AUDIT, backoff=[]) as audit:
            handles = {DEFAULT: queue, AUDIT: audit, "": queue}
            for name, waiting in TRANSACTIONS.items():
                tx = handles[waiting.group].begin()
                for _ in range(waiting.ack_count):
                    tx.ack(tx.receive(timeout=0))
                tx.put_many(waiting.puts)
                tx.prepare(name)
                if name not in UNDECIDED:
                    tx.abort() if name == ABORTED else tx.commit()
    victim = closed("a prepared log", storage, clock, 1, MERGED_FILE_BYTES, (".log",))
    assert [len(each.entries) for each in log_of(storage).segments] == [5], "five entries were to wait in one segment"
    return victim


def log_of(storage: SimulatedStorage) -> ModelLog:
    """Return what the second reader finds."""
    files = {path.name: content for path, content in storage.tree().items() if path.parent.name == "prepared"}
    return read_log({name: content for name, content in files.items() if content is not None})


def _is_lost(log: ModelLog) -> bool:
    """Whether bytes are lost between frames: whole transactions may have been there."""
    return any(each.lost for each in log.segments)


@dataclass(frozen=True)
class Decided:
    """What came of deciding all that was in doubt.

    Attributes
    ----------
    found : dict of str to bool
        What was in doubt, and whether it was whole.
    offsets : dict of str to range
        Of what was committed.
    rows : dict of str to Counter
        What each group is given: offsets and payloads.
    """

    found: dict[str, bool]
    offsets: dict[str, range]
    rows: dict[str, Counter[tuple[int, bytes]]]


class PreparedOracle:
    """Judges flips in the segment."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self._nonces = {each.id: each.nonce for each in log_of(victim.storage).segments[0].entries}
        committed = _decide_all(victim, victim.copy())
        assert committed.found == dict.fromkeys(UNDECIDED, True), f"in doubt is {committed.found}"
        aborted = _decide_all(victim, victim.copy(), commits=False)
        puts = [put for name, each in UNDECIDED.items() for put in zip(committed.offsets[name], each.puts, strict=True)]
        self._always = {group: rows - Counter(puts) for group, rows in committed.rows.items()}
        self._acked = {group: rows - self._always[group] for group, rows in aborted.rows.items()}
        counts = {group: rows.total() for group, rows in self._acked.items()}
        assert counts == {each.group: each.ack_count for each in UNDECIDED.values() if each.group}, f"{counts} acks"
        assert verify(ROOT, storage=victim.storage).ok, "the queue that is to be damaged is not whole"

    def judge(self, region: Region, storage: SimulatedStorage, *, thorough: bool) -> Verdict:
        """Judge a disk on which one bit of a region is flipped; raises AssertionError with what does not hold."""
        report = verify(ROOT, storage=storage)
        assert not report.lost, f"verify names {report.lost} as lost"
        if region.part not in (HARMLESS, WITNESS):
            assert any(damage.path == region.path for damage in report.damage), f"verify has missed it: {report}"
        is_lost = _is_lost(log_of(storage))
        expected = self._expected(storage)
        with self.victim.open(storage, mode="read_only") as onlooker:
            beside = {each.id: not each.damage for each in onlooker.prepared()}
        assert beside == expected, f"who looks is shown {beside} in doubt, and not {expected}"
        decided = _decide_all(self.victim, storage)
        assert decided.found == expected, f"in doubt is {decided.found}, and not {expected}"
        self._check_rows(decided)
        if thorough:
            self._check_later(storage, decided, is_lost=is_lost)
        return Verdict(not report.ok, 0)

    def _expected(self, storage: SimulatedStorage) -> dict[str, bool]:
        """Return what has to be in doubt, and whether it is whole.

        Beside lost bytes nothing is, and of votes nobody knows whether their puts were among these.
        """
        log = log_of(storage)
        is_lost = _is_lost(log)
        ended = {self._nonces[COMMITTED], self._nonces[ABORTED]}
        found = {each.id: each.puts is not None and not is_lost for each in log.not_ended if each.nonce not in ended}
        votes = [name for name, each in UNDECIDED.items() if each.group] if is_lost else []
        return dict.fromkeys(votes, False) | found

    def _check_rows(self, decided: Decided) -> None:
        """Each group is given what nothing waits for, the puts of what was committed, and the messages of the rest."""
        for group, rows in decided.rows.items():
            expected = Counter(self._always[group])
            for name, waiting in UNDECIDED.items():
                if name in decided.offsets:
                    expected.update(zip(decided.offsets[name], waiting.puts, strict=True))
                elif waiting.group == group:
                    expected.update(self._acked[group])
            assert rows == expected, f"{group} is given {rows}, and not {expected}"

    def _check_later(self, storage: SimulatedStorage, decided: Decided, *, is_lost: bool) -> None:
        """The next opening finds nothing in doubt, and remembers; one that lost bytes is kept until it is removed."""
        with self.victim.open(storage) as queue:
            assert not queue.prepared(), "something is in doubt again"
            assert not log_of(storage).segments, "a segment stays although nothing waits in it"
            for name, offsets in decided.offsets.items():
                assert queue.commit_prepared(name) == offsets, f"{name} is remembered with other offsets"
        prepared = queue_directory(ROOT).prepared
        kept = [prepared / name for name in storage.list(prepared) if name.endswith(".damaged")]
        assert len(kept) == is_lost, f"quarantined is {kept}"
        report = verify(ROOT, storage=storage)
        assert [each.path for each in report.damage] == kept, f"the damage stays, or is forgotten: {report}"
        for path in kept:
            storage.remove(path)
        report = verify(ROOT, storage=storage)
        assert report.ok, f"the damage stays: {report}"


def _decide_all(victim: Victim, storage: SimulatedStorage, *, commits: bool = True) -> Decided:
    """Commit what is whole, or nothing; abort the rest, which cannot be committed. Then take all there is."""
    offsets: dict[str, range] = {}
    with victim.open(storage) as queue, open_beside(queue, AUDIT, backoff=[]) as audit:
        found = {each.id: not each.damage for each in queue.prepared()}
        for name, is_whole in found.items():
            before = queue.stats().next_offset
            if commits and is_whole:
                offsets[name] = queue.commit_prepared(name)
                assert len(offsets[name]) == len(UNDECIDED[name].puts), f"{name} has offsets {offsets[name]}"
            else:
                assert is_whole or _is_refused(queue, name), f"{name} is damaged, and was committed"
                queue.abort_prepared(name)
                assert queue.stats().next_offset == before, f"half of {name} was applied"
        assert not queue.prepared(), "it is decided"
        rows = {
            group: Counter((row[0], row[1]) for row in take_all(handle).rows)
            for group, handle in ((DEFAULT, queue), (AUDIT, audit))
        }
        assert len(queue.commit_prepared(COMMITTED)) == 1
        try:
            queue.commit_prepared(ABORTED)
        except TransactionStateError:
            return Decided(found, offsets, rows)
        raise AssertionError("what was aborted was committed")


def _is_refused(queue: PersistentQueue, name: str) -> bool:
    try:
        queue.commit_prepared(name)
    except CorruptionError:
        return True
    return False
