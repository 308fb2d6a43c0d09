"""A stream over its life, in any order: batches, crashes, restarts, lost checkpoints; puts, consumers, data files.

Whatever happens, the sink has every message once and in order, a batch that comes again has the same rows, and a
group that was finalized keeps nothing that Spark cannot ask for.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from holdfast import PersistentQueue
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.spark import finalize
from support.builders.small_queues import FILE_BYTES, payload
from support.spark.spark_streams import StreamRun

pytestmark = pytest.mark.usefixtures("arrow_packages", "tiny_files")

EXAMPLES = 40
STEPS = 30
GROUP = "spark"


class StreamMachine(RuleBasedStateMachine):
    """One queue, one application that puts and consumes, one stream."""

    @initialize(
        retained=st.integers(1, 3),
        messages=st.integers(4, 15),
        size=st.none() | st.integers(1, 600),
    )
    def begin(self, retained: int, messages: int, size: int | None) -> None:
        """Make the stream, and a queue of a few data files."""
        self.place = Path(tempfile.mkdtemp(prefix="holdfast-stream-"))
        self.retained = retained
        self.queue = self.opened()
        self.put_count = self.final = self.most = 0
        for _ in range(5):
            self.put(12)
        limits = {"maxMessagesPerTrigger": messages, "maxBytesPerTrigger": size}
        options = {name: bound for name, bound in limits.items() if bound is not None}
        self.stream = StreamRun(
            self.place / "queue", self.place / "checkpoint", group=GROUP, retainBatches=retained, **options
        )
        self.stream.reader.initialOffset()
        self.seen: dict[int, tuple[str, list[tuple[int, bytes]]]] = {}

    def opened(self) -> PersistentQueue:
        """Open the queue as the application does."""
        return PersistentQueue(self.place / "queue", mode="shared", data_file_bytes=FILE_BYTES)

    # -- The application ---------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 25))
    def put(self, count: int) -> None:
        """Put some messages together; they are visible at once."""
        self.queue.put_many([payload(number) for number in range(self.put_count, self.put_count + count)])
        self.put_count += count

    @rule(count=st.integers(1, 40))
    def take(self, count: int) -> None:
        """Take some; files that nobody needs go."""
        if self.queue.stats().depth:
            self.queue.get_many(count, timeout=0)

    @rule()
    def reopen(self) -> None:
        """Stop the application and start it again."""
        self.queue.close()
        self.queue = self.opened()

    # -- The stream --------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 8))
    def batches(self, count: int) -> None:
        """Run some batches to their end."""
        for _ in range(count):
            self.run(finish=True)

    @rule(is_read=st.booleans())
    def crash_in_a_batch(self, is_read: bool) -> None:
        """Die behind the planning, or behind the reading."""
        if is_read:
            self.run(finish=False)
        else:
            self.stream.plan()
        self.stream.restart()

    @rule(available_now=st.booleans())
    def restart(self, available_now: bool) -> None:
        """Go on in another process."""
        self.stream.restart(available_now=available_now)

    @rule(count=st.integers(1, 3))
    def lose_the_checkpoint(self, count: int) -> None:
        """A power failure takes the latest batches from the checkpoint, no more than are retained in all."""
        while self.queue.stats().depth:  # nobody but the stream keeps a file
            self.take(100)
        numbers = self.stream.numbers("offsets")
        left = max(len(self.stream.numbers("commits")) - count, self.most - self.retained, self.final)
        if left < len(numbers):
            self.stream.forget(len(numbers) - left)
            self.stream.restart()

    @rule()
    def finalize(self) -> None:
        """Finish what is committed; its checkpoint is on the disk then."""
        done = finalize(self.place / "queue", self.place / "checkpoint", group=GROUP)
        numbers = self.stream.numbers("commits")
        self.final = len(numbers)
        assert done == (self.stream.offset(numbers[-1]) if numbers else 0)

    def run(self, *, finish: bool) -> None:
        """Run a batch, and hold it to what it was the last time."""
        number = self.stream.plan()
        if number is None:
            return
        rows = self.stream.run(number)
        text, before = self.seen.get(number, ("", rows))
        if text == self.stream.text(number):
            assert rows == before, "the same offsets are the same rows"
        self.seen[number] = (self.stream.text(number), rows)
        if finish:
            self.stream.finish(number, rows)
            self.most = max(self.most, number + 1)

    def teardown(self) -> None:
        """Read the rest: the sink has it all, and the queue nothing that is not needed."""
        if not hasattr(self, "queue"):
            return
        try:
            self.stream.restart()
            self.stream.all()
            rows = [row for number in sorted(self.stream.rows) for row in self.stream.rows[number]]
            assert rows == [(offset, payload(offset)) for offset in range(self.put_count)]
            if rows:
                assert finalize(self.place / "queue", self.place / "checkpoint", group=GROUP) == self.put_count
            self.queue.close()
            with PersistentQueue(self.place / "queue", mode="read_only", group=GROUP) as looked:
                assert looked.stats().depth == 0
        finally:
            self.queue.close()
            shutil.rmtree(self.place)


def test_a_stream_loses_nothing_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to Spark, to the application and to the checkpoint."""
    monkeypatch.setattr(OsFile, "sync", lambda _: None)  # the disk never fails here, and syncs are most of the time
    monkeypatch.setattr(OsStorage, "sync_directory", lambda *_: None)
    run_state_machine_as_test(
        StreamMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
        ),
    )
