"""What a transaction costs: syncs counted on the storage port, step by step, as docs/transactions.md prints them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast import FlushPolicy, PersistentQueue, Transaction
from support.builders.clocks import FakeClock
from support.builders.handles import end_commit_records, handle_of
from support.storages.disk_operations import Sync, SyncDirectory
from support.storages.simulated_storage import SimulatedStorage

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "transactions.md"
ROW = re.compile(r"^\| (?P<step>[^|]+) \| (?P<syncs>\d+) \|[^|]*\|$", re.MULTILINE)

FILE_BYTES = 2 * 2**20
LARGE = [b"x" * (FILE_BYTES // 32)] * 16  # more than a quarter of a data file: adopted, never copied
DECISIONS_MAX = 256

Step = Callable[[], object]


def documented() -> dict[str, int]:
    """Return the syncs of each step as the table under "What it costs" has them."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("## What it costs")[2].partition("\n## ")[0]
    return {found["step"]: int(found["syncs"]) for found in ROW.finditer(section)}


class Bench:
    """Two queues that have done everything once, so that nothing is made for the first time, and have no open end."""

    def __init__(self, policy: FlushPolicy) -> None:
        self.storage = SimulatedStorage()
        self.clock = FakeClock()  # no time passes: nothing is synced for being idle
        self.orders = self._open("orders", policy)
        self.invoices = self._open("invoices", policy)
        for queue in (self.orders, self.invoices):
            queue.put_many([b"x"] * (2 * DECISIONS_MAX))
            for puts, acks in ((1, 0), (0, 1)):
                transaction = self.begin(queue, puts=puts, acks=acks)
                transaction.prepare()
                transaction.commit()
        self.settle()

    def _open(self, name: str, policy: FlushPolicy) -> PersistentQueue:
        return PersistentQueue(
            Path("/", name),
            mode="exclusive",
            flush=policy,
            data_file_bytes=FILE_BYTES,
            storage=self.storage,
            clock=self.clock,
        )

    def close(self) -> None:
        """Close both."""
        self.orders.close()
        self.invoices.close()

    def settle(self) -> None:
        """End what is open, so that it is not counted with what comes."""
        for queue in (self.orders, self.invoices):
            end_commit_records(handle_of(queue).require_write_side())

    def begin(self, queue: PersistentQueue | None = None, *, puts: int = 0, acks: int = 0) -> Transaction:
        """Return a transaction with some work done."""
        transaction = (queue or self.orders).begin()
        for _ in range(puts):
            transaction.put(b"x")
        for _ in range(acks):
            transaction.ack(transaction.receive(timeout=0))
        return transaction

    def begin_large(self) -> Transaction:
        """Return a transaction whose puts are adopted."""
        transaction = self.orders.begin()
        transaction.put_many(LARGE)
        return transaction

    def prepared(self, transaction: Transaction) -> Transaction:
        """Return a transaction, prepared; what that leaves open is ended."""
        transaction.prepare()
        self.settle()
        return transaction

    def both(self, *, puts: tuple[int, int], acks: tuple[int, int]) -> Step:
        """Return the commit of a transaction over both queues."""
        transaction = holdfast.transaction(self.orders, self.invoices)
        for queue, put_count, ack_count in zip((self.orders, self.invoices), puts, acks, strict=True):
            for _ in range(put_count):
                transaction.put(queue, b"x")
            for _ in range(ack_count):
                transaction.ack(queue, transaction.receive(queue, timeout=0))
        return transaction.commit

    def count(self, step: Step) -> int:
        """Return how many syncs a step takes, of files and directories."""
        before = len(self.storage.log)
        step()
        return sum(isinstance(operation, Sync | SyncDirectory) for operation in self.storage.log[before:])


def streamed(bench: Bench) -> Step:
    """Return the commit of one streamed message."""
    transaction = bench.orders.begin()
    transaction.put_stream([b"a", b"b"])
    return transaction.commit


def ending(bench: Bench) -> Step:
    """Return the end of as many decisions as end together."""
    for _ in range(DECISIONS_MAX - 1):
        bench.begin(puts=1, acks=1).commit()
    assert len(handle_of(bench.orders).require_write_side().pending_commit_records) == DECISIONS_MAX - 1
    return bench.settle


def joint(bench: Bench, *transactions: Transaction, is_again: bool = False) -> Step:
    """Return a joint commit of some parts, or its repetition."""
    queue = bench.orders
    queue.joint_commits.commit("bench", 1, [])
    ids = [transaction.prepare(part_of=("bench", 2)) for transaction in transactions]
    commit = partial(queue.joint_commits.commit, "bench", 2, ids)
    if is_again:
        commit()
    bench.settle()
    return commit


def aborted(bench: Bench) -> Step:
    """Return the abort of a part."""
    bench.begin(puts=2).prepare(part_of=("bench", 2))
    return partial(bench.orders.joint_commits.abort, "bench", 2)


STEPS: dict[str, Callable[[Bench], Step]] = {
    "commit of puts, under `every_commit()`": lambda bench: bench.begin(puts=2).commit,
    "commit of acknowledgements, under `every_commit()`": lambda bench: bench.begin(acks=2).commit,
    "commit of puts and acknowledgements": lambda bench: bench.begin(puts=2, acks=2).commit,
    "commit of puts that were streamed": streamed,
    "commit of puts that are adopted": lambda bench: bench.begin_large().commit,
    "abort": lambda bench: bench.begin(puts=2, acks=2).abort,
    "prepare of puts": lambda bench: bench.begin(puts=2).prepare,
    "prepare of puts that are adopted": lambda bench: bench.begin_large().prepare,
    "prepare of acknowledgements": lambda bench: bench.begin(acks=2).prepare,
    "prepare of puts and acknowledgements": lambda bench: bench.begin(puts=2, acks=2).prepare,
    "commit of prepared puts": lambda bench: bench.prepared(bench.begin(puts=2)).commit,
    "commit of prepared acknowledgements": lambda bench: bench.prepared(bench.begin(acks=2)).commit,
    "commit of prepared puts and acknowledgements": lambda bench: bench.prepared(bench.begin(puts=2, acks=2)).commit,
    "commit of prepared puts that are adopted": lambda bench: bench.prepared(bench.begin_large()).commit,
    "abort of prepared puts": lambda bench: bench.prepared(bench.begin(puts=2)).abort,
    "abort of prepared acknowledgements": lambda bench: bench.prepared(bench.begin(acks=2)).abort,
    "abort of prepared puts and acknowledgements": lambda bench: bench.prepared(bench.begin(puts=2, acks=2)).abort,
    "two queues: receive and acknowledge in one, put in the other": lambda bench: bench.both(puts=(0, 1), acks=(1, 0)),
    "two queues: acknowledge in both": lambda bench: bench.both(puts=(0, 0), acks=(1, 1)),
    "two queues: put in both": lambda bench: bench.both(puts=(1, 1), acks=(0, 0)),
    "two queues: put and acknowledge in both": lambda bench: bench.both(puts=(1, 1), acks=(1, 1)),
    "prepare of a part of a joint commit": lambda bench: partial(bench.begin(puts=2).prepare, part_of=("bench", 2)),
    "joint commit of one part": lambda bench: joint(bench, bench.begin(puts=2)),
    "joint commit of three parts": lambda bench: joint(bench, *(bench.begin(puts=2) for _ in range(3))),
    "joint commit of three parts that are adopted": lambda bench: joint(
        bench, *(bench.begin_large() for _ in range(3))
    ),
    "joint commit of nothing": joint,
    "joint commit again": lambda bench: joint(bench, bench.begin(puts=2), is_again=True),
    "joint abort of one part": aborted,
    f"end of up to {DECISIONS_MAX} commit records of puts and acknowledgements": ending,
}
BY_POLICY = {step for step in STEPS if step.endswith("under `every_commit()`")}


def test_the_document_and_the_test_speak_of_the_same_steps() -> None:
    """No figure is printed that nothing counts."""
    assert list(documented()) == list(STEPS)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_takes_the_syncs_that_are_documented(step: str) -> None:
    """Under the default policy, counted on the storage port."""
    bench = Bench(FlushPolicy.every_commit())
    assert bench.count(STEPS[step](bench)) == documented()[step]
    bench.close()


@pytest.mark.parametrize("step", STEPS)
def test_under_a_relaxed_policy_only_plain_commits_are_spared_their_sync(step: str) -> None:
    """What has to be atomic over two files, or was prepared, is synced under every policy."""
    bench = Bench(FlushPolicy.never())
    expected = 0 if step in BY_POLICY else documented()[step]
    assert bench.count(STEPS[step](bench)) == expected
    bench.close()


def test_the_256th_open_decision_makes_them_end_together() -> None:
    """So the cost of ending one is a fraction of a sync, and opening has no more than so many to look at."""
    bench = Bench(FlushPolicy.every_commit())
    steps = [bench.begin(puts=1, acks=1).commit for _ in range(DECISIONS_MAX + 1)]
    assert [bench.count(step) for step in steps] == [1] * (DECISIONS_MAX - 1) + [2, 1]
    bench.close()
