"""Hypothesis drives a queue and a model of it with every call there is, closes it, kills it, and compares."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast import Delivery, DeliveryBatch, Empty, FlushPolicy, GroupNotFoundError, PersistentQueue, StaleReceiptError
from support.builders.clocks import NS_PER_SECOND, START_NS, FakeClock
from support.builders.handles import handle_of
from support.builders.settings import set_first
from support.models.model import ModelGroup, ModelQueue
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.recorded_run import ROOT, message

pytestmark = pytest.mark.timeout(600)  # up to 18,000 steps: two minutes on a core that is shared

POLICIES = (FlushPolicy.every_commit(), FlushPolicy.every(commits=3), FlushPolicy.never())
DATA_FILE_SIZES = (16 * 2**10, 32 * 2**10)  # the smallest, and another
UNIQUE_BYTES_MIN = 16  # shorter ones do not say their offset
NAMES = ("default", "a", "b")
FILES_LEFT_MAX = 2  # the one that is being written, and at the most the one before it

sizes = st.one_of(st.integers(0, 60), st.integers(2000, 6000))
counts = st.integers(1, 8)
LEASE_SECONDS = 10_000  # longer than a run waits without meaning it
BACKOFF_SECONDS = 20
ways_to_open = st.fixed_dictionaries(
    {
        "flush": st.sampled_from(POLICIES),
        "data_file_bytes": st.sampled_from(DATA_FILE_SIZES),
        "max_deliveries": st.sampled_from([None, 2, 5]),
    }
)
delays = st.sampled_from([0, 5, None])


class QueueAgainstModel(RuleBasedStateMachine):
    """One handle at a time; what is expected stands in ``model``."""

    def __init__(self) -> None:
        super().__init__()
        self.storage = SimulatedStorage()
        self.clock = FakeClock()
        self.model = ModelQueue()
        self.name = "default"
        self.in_hand: list[Delivery] = []
        self.settled: list[Delivery] = []
        self.has_empty = False
        self.files_are_retired = False  # known since the last thing that retires them

    @initialize(name=st.sampled_from(NAMES), options=ways_to_open)
    def make(self, name: str, options: dict[str, object]) -> None:
        """Begin with a new queue."""
        self.open(name, options)
        if name != "default":
            self.model.create(name, 0)
            self.set_max_deliveries()

    def open(self, name: str, options: dict[str, object]) -> None:
        """Open the queue for a group; what was in hand is ready again."""
        self.name = name
        given: Any = options
        of_group: Any = {"max_deliveries": options["max_deliveries"]}
        of_queue: Any = {setting: value for setting, value in options.items() if setting not in of_group}
        set_first(ROOT, self.storage, clock=self.clock, **of_queue)
        set_first(ROOT, self.storage, clock=self.clock, group=name, **of_group)
        self.queue = PersistentQueue(
            ROOT,
            group=name,
            storage=self.storage,
            clock=self.clock,
            lease_seconds=LEASE_SECONDS,
            backoff=[BACKOFF_SECONDS],
            **{"mode": "exclusive", **given},
        )
        self.options = options
        self.model.reopen()
        self.set_max_deliveries()
        self.in_hand.clear()
        self.settled.clear()

    def set_max_deliveries(self) -> None:
        """Tell the open group how often this handle hands messages out."""
        if self.name in self.model.groups:
            self.model.groups[self.name].max_deliveries = self.options["max_deliveries"]  # type: ignore[assignment]

    @property
    def group(self) -> ModelGroup:
        """The group that is open, in the model; the default group begins to exist at its first use."""
        if self.name not in self.model.groups:
            self.model.create(self.name, self.queue.stats().first_offset)
            self.set_max_deliveries()
        return self.model.groups[self.name]

    def ready(self) -> list[int]:
        """Return what the open group would be given; does not make it begin."""
        group = self.model.groups.get(self.name) or ModelGroup(self.queue.stats().first_offset)
        return group.ready(self.model.end, self.clock.time_ns())

    def something_is_ready(self) -> bool:
        """Whether that is anything; if so, the group begins: what follows takes it, and then its first file may go."""
        return bool(self.ready()) and self.group is not None

    def has_holes(self) -> bool:
        """Whether files were retired between others: a group that begins now would miss what was in them."""
        sequences = [int(name[:10]) for name in self.storage.list(ROOT / "data")]
        return bool(sequences) and sequences[-1] - sequences[0] != len(sequences) - 1

    def may_begin(self) -> bool:
        """Whether the open group has begun, or can do so now."""
        return self.name in self.model.groups or not self.has_holes()

    def takes(self, payloads: list[bytes], count_max: int) -> list[int]:
        """Compare what came out with what should; return its offsets."""
        waiting = {self.model.payloads[offset]: offset for offset in reversed(self.ready())}
        assert 1 <= len(payloads) <= count_max
        assert set(payloads) <= waiting.keys()
        offsets = [waiting[payload] for payload in payloads]
        self.group.check_order(offsets, self.model.end, self.clock.time_ns())
        return offsets

    def finish(self, offsets: Iterable[int]) -> None:
        """Note what was acknowledged."""
        self.group.finish(offsets)
        self.files_are_retired = True

    # -- Putting -----------------------------------------------------------------------------------------------------

    def payload(self, offset: int, size: int) -> bytes:
        """Return a payload that no other message has, so that each is known by it; one of them is empty."""
        if size < UNIQUE_BYTES_MIN and not self.has_empty:
            self.has_empty = True
            return b""
        return message(offset, max(size, UNIQUE_BYTES_MIN))

    @rule(size=sizes)
    def put(self, size: int) -> None:
        """Append one message: the offset is the next."""
        payload = self.payload(self.model.end, size)
        assert self.queue.put(payload) == self.model.put([payload]).start

    @rule(batch=st.lists(sizes, max_size=6))
    def put_many(self, batch: list[int]) -> None:
        """Append a batch: the offsets are the next."""
        payloads = [self.payload(self.model.end + number, size) for number, size in enumerate(batch)]
        assert self.queue.put_many(payloads) == self.model.put(payloads)

    @precondition(lambda self: not any(group.until_ns for group in self.model.groups.values()))
    @rule(seconds=st.integers(-3600, 3600))
    def turn_the_clock(self, seconds: int) -> None:
        """An administrator sets the wall clock; nothing that waits for time wakes up."""
        self.clock.set_time_ns(START_NS + seconds * NS_PER_SECOND)

    @rule(seconds=st.sampled_from([1, BACKOFF_SECONDS]))
    def wait(self, seconds: int) -> None:
        """Let time pass: what waits after a failure comes again."""
        self.clock.advance(seconds)

    @precondition(lambda self: self.in_hand)
    @rule()
    def let_leases_run_out(self) -> None:
        """What is in hand has failed, and comes again at once; its receipts are stale."""
        self.clock.advance(LEASE_SECONDS)
        assert self.queue.stats().in_flight == 0
        self.group.give_back([delivery.offset for delivery in self.in_hand])
        self.put_down(list(self.in_hand))

    # -- Taking ------------------------------------------------------------------------------------------------------

    @precondition(may_begin)
    @rule()
    def get(self) -> None:
        """Take and acknowledge one message, or find nothing."""
        if not self.something_is_ready():
            with pytest.raises(Empty):
                self.queue.get(block=False)
            assert not self.group.ready(
                self.model.end, self.clock.time_ns()
            )  # the group has begun, with nothing to give
            return
        offsets = self.takes([self.queue.get(block=False)], 1)
        self.group.hand_out(offsets)
        self.finish(offsets)

    @precondition(may_begin)
    @rule(count=counts)
    def get_many(self, count: int) -> None:
        """Take and acknowledge several messages."""
        if self.something_is_ready():
            offsets = self.takes(self.queue.get_many(count, timeout=0), count)
            self.group.hand_out(offsets)
            self.finish(offsets)

    @precondition(may_begin)
    @rule()
    def receive(self) -> None:
        """Take one message and keep it in hand."""
        if self.something_is_ready():
            self.deliver([self.queue.receive(timeout=0)], 1)

    @precondition(may_begin)
    @rule(count=counts, keep=st.integers(0, 2), delay=delays, data=st.data())
    def receive_many(self, count: int, keep: int, delay: int | None, data: st.DataObject) -> None:
        """Take several messages; settle some through their batch, keep the others in hand."""
        if not self.something_is_ready():
            return
        batch = self.queue.receive_many(count, timeout=0)
        self.deliver(list(batch), count)
        done = batch[keep:]
        if data.draw(st.booleans(), "acknowledge"):
            batch.ack(done)
            self.finish([delivery.offset for delivery in done])
        else:
            batch.nack(done, delay=delay)
            self.group.give_back([delivery.offset for delivery in done], self.until(delay))
        self.put_down(done)
        if data.draw(st.booleans(), "the rest"):
            self.settle_the_rest(batch)

    def settle_the_rest(self, batch: DeliveryBatch) -> None:
        """Acknowledge what is left of a batch by leaving its ``with``."""
        rest = [delivery for delivery in batch if not delivery.is_settled]
        with batch:
            pass
        self.finish([delivery.offset for delivery in rest])
        self.put_down(rest)

    def until(self, delay: int | None) -> int:
        """Return when a message comes again that fails now."""
        seconds = BACKOFF_SECONDS if delay is None else delay
        return self.clock.time_ns() + seconds * NS_PER_SECOND if seconds else 0

    def deliver(self, deliveries: list[Delivery], count_max: int) -> None:
        """Compare deliveries with what should come, and keep them."""
        offsets = self.takes([delivery.payload for delivery in deliveries], count_max)
        assert [delivery.offset for delivery in deliveries] == offsets
        self.group.check_alone(offsets)
        assert [delivery.delivery_count for delivery in deliveries] == self.group.deliver(offsets)
        self.in_hand += deliveries

    def put_down(self, deliveries: Iterable[Delivery]) -> None:
        """Note that deliveries are settled."""
        for delivery in deliveries:
            self.in_hand.remove(delivery)
            self.settled.append(delivery)
            assert delivery.is_settled

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "nack", "nack", "release", "reject"]), delay=delays)
    def settle_one(self, data: st.DataObject, verb: str, delay: int | None) -> None:
        """Acknowledge a message in hand, give it back or make it a dead letter, by itself, out of order."""
        delivery = data.draw(st.sampled_from(self.in_hand), "delivery")
        if verb == "ack":
            delivery.ack()
            self.finish([delivery.offset])
        elif verb == "nack":
            delivery.nack(delay)
            self.group.give_back([delivery.offset], self.until(delay))
        elif verb == "release":
            delivery.release()
            self.group.release([delivery.offset])
        else:
            delivery.reject("no use")
            self.group.bury([delivery.offset])
        self.put_down([delivery])

    @precondition(lambda self: self.name in self.model.groups and self.group.dead)
    @rule(data=st.data(), again=st.booleans())
    def decide_dead_letters(self, data: st.DataObject, again: bool) -> None:
        """Have some of them come again, or finish them."""
        self.queue.peek(1000)  # all is read now, so where they come is certain
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.group.dead)), min_size=1, unique=True), "dead letters")
        if again:
            assert self.queue.dead.retry(chosen) == len(chosen)
            self.group.retry(chosen, self.clock.time_ns())
        else:
            assert self.queue.dead.discard(chosen) == len(chosen)
            self.finish(chosen)

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def settle_twice(self, data: st.DataObject) -> None:
        """A stale receipt changes nothing, even where the message is in somebody's hand again."""
        delivery = data.draw(st.sampled_from(self.settled), "delivery")
        with pytest.raises(StaleReceiptError):
            delivery.ack()
        with pytest.raises(StaleReceiptError):
            delivery.nack()

    @rule(count=st.integers(1, 100))
    def peek(self, count: int) -> None:
        """Look at what comes next, with its delivery counts; timestamps go up with offsets."""
        if self.name not in self.model.groups:
            return
        seen = self.queue.peek(count)
        expected = [entry.offset for entry in seen]
        assert len(seen) == min(count, len(self.ready()))
        self.group.check_order(expected, self.model.end, self.clock.time_ns(), mixes=True)
        assert [entry.payload for entry in seen] == [self.model.payloads[offset] for offset in expected]
        assert [entry.delivery_count for entry in seen] == [self.group.deliveries.get(o, 0) for o in expected]
        stamps = [entry.timestamp_ns for entry in sorted(seen, key=lambda entry: entry.offset)]
        assert stamps == sorted(stamps)

    # -- Groups ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.has_holes())
    @rule(name=st.sampled_from(NAMES[1:]), start=st.sampled_from(["earliest", "latest", 0, 3]))
    def create_group(self, name: str, start: str | int) -> None:
        """Make a group, or find that it exists."""
        end, first = self.model.end, self.queue.stats().first_offset
        if isinstance(start, int):
            start = min(start, end)
        expected = {"earliest": first, "latest": end}.get(str(start)) if isinstance(start, str) else max(start, first)
        assert expected is not None
        assert self.queue.groups.create(name, start) == self.model.create(name, expected).start

    @rule(name=st.sampled_from(NAMES))
    def delete_group(self, name: str) -> None:
        """Delete a group that nobody reads for; what only it had not finished goes."""
        if name == self.name:
            return
        if name not in self.model.groups:
            with pytest.raises(GroupNotFoundError):
                self.queue.groups.delete(name)
            return
        self.queue.groups.delete(name)
        del self.model.groups[name]
        self.files_are_retired = True

    # -- Endings -----------------------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        """Sync everything: nothing to be seen."""
        self.queue.flush()

    @rule(data=st.data(), options=ways_to_open)
    def close_and_open(self, data: st.DataObject, options: dict[str, object]) -> None:
        """Close in order, open for some group in another way: what was in hand was not tried."""
        self.queue.close()
        if self.in_hand:
            self.group.release([delivery.offset for delivery in self.in_hand])
        self.open(data.draw(st.sampled_from(sorted({"default", *self.model.groups})), "group"), options)
        self.files_are_retired = False

    @rule(data=st.data(), options=ways_to_open)
    def kill_and_open(self, data: st.DataObject, options: dict[str, object]) -> None:
        """The process dies with everything in hand; nothing that a call had returned is lost."""
        killed, self.storage = self.queue, self.storage.crash_keeping_all()
        killed.close()  # on the disk that nobody looks at any more
        self.open(data.draw(st.sampled_from(sorted({"default", *self.model.groups})), "group"), options)
        self.files_are_retired = False

    def teardown(self) -> None:
        """Let go of threads."""
        if hasattr(self, "queue"):
            self.queue.close()

    # -- Always ------------------------------------------------------------------------------------------------------

    @invariant()
    def figures_agree(self) -> None:
        """The figures of ``stats`` are those of the model, and nothing is lost."""
        stats, recovery = self.queue.stats(), self.queue.recovery
        assert stats.next_offset == self.model.end
        assert stats.in_flight == len(self.in_hand)
        assert (stats.lost, recovery.damage, recovery.progress_damage) == (0, (), ())
        assert self.queue.groups.list() == sorted(self.model.groups)
        if self.name in self.model.groups:
            self.find_dead_letters()
            assert (stats.depth, stats.dead) == (self.group.depth(self.model.end), len(self.group.dead))
            waiting = self.group.waiting(self.clock.time_ns())
            found = len(self.ready()), stats.delayed
            if waiting <= self.group.returned and not self.group.doomed:
                assert (self.queue.qsize(), stats.delayed) == (len(self.ready()), len(waiting))
                assert self.queue.empty() == (not self.ready())
            else:  # some of them have not been read again
                assert found[0] <= self.queue.qsize() <= found[0] + len(waiting | self.group.doomed)

    def find_dead_letters(self) -> None:
        """Compare the dead letters; those whose last receiver died come to be some when somebody comes by them."""
        side = handle_of(self.queue).read_side
        assert side is not None
        found = set(side.progress.dead)
        dead, doomed = self.group.dead, self.group.doomed
        assert dead <= found <= dead | doomed, f"{found} are dead letters, not {dead} and some of {doomed}"
        self.group.bury(found - self.group.dead)

    @invariant()
    def finished_files_go(self) -> None:
        """Once every group has finished everything, no file stays but the newest."""
        if self.files_are_retired and self.model.everything_is_finished():
            assert self.queue.stats().file_count <= FILES_LEFT_MAX
        self.files_are_retired = False


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(
    max_examples=300,
    stateful_step_count=60,
    derandomize=True,  # the same runs everywhere: what fails here fails there
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
