"""What can be known of a queue after a history of calls. Nothing here is ever changed: a transition makes a new state.

Where the documentation leaves a number or a moment open (jitter, a lease that is noticed late, a count after a loss of
power) it is a :class:`Span`, and what the queue answers next narrows it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from proof.second_model.expressions import EXPRESSIONS

SECOND_NS = 1_000_000_000

#: work-queue.md, "Limits": leases are "noticed up to 20 ms late".
NOTICED_LATE_NS = 20_000_000


class DisagreementError(AssertionError):
    """The queue has answered what the documentation does not allow; says which sentence."""


class TooManyStatesError(Exception):
    """A history leaves more states possible than the judge follows, which says no more of it."""


class Span(NamedTuple):
    """A number that lies between two others, both included."""

    low: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing is left open."""
        return self.low == self.high


NOTHING = Span(0, 0)


class Now(NamedTuple):
    """The two clocks, in nanoseconds: delays go by the wall clock, leases by the monotonic one (work-queue.md)."""

    wall: int
    mono: int


class Message(NamedTuple):
    """What stands in the log of one put."""

    offset: int
    payload: bytes
    put_at: int
    not_before: int = 0
    expires: int | None = None
    priority: int = 0
    order_key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Course(NamedTuple):
    """How far a message has come in one group."""

    state: str = "waiting"  # or leased, held, dead, done
    times: Span = Span(0, 0)  # how often it was handed out, as far as that counts
    ready_at: Span = Span(0, 0)
    place: str = "log"  # or aside, either
    comes_alone: bool = False
    defies_expiry: bool | None = False  # None: the documentation does not say
    was_retried: bool = False  # since it was put
    may_be_gone: bool = False  # with its data file, before the group began
    is_left_out: bool = False  # by the filter, as soon as a consumer reads it
    perhaps: frozenset[str] = frozenset()  # how it may have ended by settings that were changed since
    rank: tuple[int, int] = (0, 0)  # its place in the line of its order key
    receipt: int | None = None  # who has it in hand
    lease: Span | None = None  # when it runs out; None: it does not
    lease_ns: int = 0  # as long as it was leased for
    transaction: int | None = None  # who settles it
    prepared: str | None = None  # which prepared transaction holds it
    reasons: frozenset[str] = frozenset()
    detail: str | None = None
    dead_at: Span = Span(0, 0)


class Receipt(NamedTuple):
    """What became of one handing-out: live, settled, run_out, or lost with its handle."""

    offset: int
    state: str = "live"
    is_in_block: bool = False
    transaction: int | None = None
    was_of: int | None = None  # the transaction that had it when a seek took it away


class Pause(NamedTuple):
    """A pause of a group."""

    until: int | None
    reason: str


class Ask(NamedTuple):
    """A message that a transaction is going to put; its times have begun."""

    payload: bytes
    not_before: int = 0
    expires: int | None = None
    priority: int = 0
    order_key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Tx:
    """A transaction that this handle has begun."""

    state: str
    deadline: Span
    asks: tuple[Ask, ...] = ()
    received: tuple[int, ...] = ()  # receipts
    acknowledged: tuple[int, ...] = ()
    id: str | None = None
    offsets: range = range(0)
    record_bytes_max: int = 0  # as it was when it began


class Remembered(NamedTuple):
    """A deduplication id."""

    offset: int
    at: int
    is_sure: bool = True  # else its window was over once, or others may have made it forgotten


@dataclass(frozen=True)
class Prepared:
    """A transaction that is durable and undecided."""

    asks: tuple[Ask, ...]
    held: tuple[int, ...]  # offsets
    group: str
    tx: int | None  # the object that prepared it, while its handle is open
    at: int  # when


@dataclass(frozen=True)
class Options:
    """The settings that count, of a queue and one group: settings.md, the first table."""

    max_deliveries: int | None = 5
    backoff: tuple[float, ...] | tuple[str, float, float, bool] = ("doubling", 1, 3600, True)
    lease_seconds: float = 30
    expired: str = "drop"
    dead_letter_seconds: float = 1_209_600
    maxsize: int = 0
    max_bytes: int | None = None
    record_bytes_max: int = 2**24
    data_file_bytes: int = 2**26
    dedup_window: float = 300
    dedup_max: int = 100_000
    data_file_max_age: float | None = None
    max_lag_bytes: int | None = None
    max_lag_age: float | None = None
    retain_age: float | None = None
    retain_bytes: int | None = None
    retain_messages: int | None = None

    @property
    def keeps_finished(self) -> bool:
        """Whether finished messages are kept for a while."""
        return (self.retain_age, self.retain_bytes, self.retain_messages) != (None, None, None)


OF_GROUP = frozenset(
    {"max_deliveries", "backoff", "lease_seconds", "expired", "dead_letter_seconds", "max_lag_bytes", "max_lag_age"}
)
"""Of the settings, those that belong to a group; the others belong to the queue."""


@dataclass(frozen=True)
class Group:
    """The progress of one consumer group, and its settings."""

    start: int = 0
    courses: Mapping[int, Course] = field(default_factory=dict)
    pause: Pause | None = None
    passed: int = 0  # the log was taken from up to here, by the present handle
    blurred: int = 0  # messages of which an earlier handle may have made an end
    missing: frozenset[int] = frozenset()  # may have gone with their data files before the group began
    settings: Mapping[str, Any] = field(default_factory=dict)
    skipped: Span = NOTHING
    filter: str | None = None

    def answer(self, message: Message) -> bool | None:
        """Return whether a message matches the filter; None if its expression has no answer."""
        return self.filter is None or EXPRESSIONS[self.filter](message)


@dataclass(frozen=True)
class State:
    """All that is known."""

    group: str = "default"
    messages: tuple[Message, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=lambda: {"default": Group()})
    receipts: Mapping[int, Receipt] = field(default_factory=dict)
    transactions: Mapping[int, Tx] = field(default_factory=dict)
    prepared: Mapping[str, Prepared] = field(default_factory=dict)
    decided: Mapping[str, tuple[str, range]] = field(default_factory=dict)
    ids: Mapping[str, Remembered] = field(default_factory=dict)
    dedup_max: int = 100_000  # as it was when the present handle was opened
    forgotten: Span = NOTHING
    dropped: Span = NOTHING  # by the present handle
    filtered: Span = NOTHING  # by the present handle
    without_answer: frozenset[int] = frozenset()  # of what the present handle has handed out
    has_priorities: bool = False
    read_end: int = 0  # the present handle has read the log up to here, at the least
    has_new_groups: bool = False  # made or deleted by the present handle
    retried: int = 0
    end: str = ""  # of the present handle: closed, or shut down at once
    sweeps_from: int = 0  # when the handle was opened, or the time that letters are kept was changed
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the queue
    gone: frozenset[int] = frozenset()  # may be gone, though retention keeps it by now
    was_keeping: bool = False  # finished messages, by settings that have changed since the last pass

    @cached_property
    def options(self) -> Options:
        """The settings that count now, those of the handle's group among them: each counts at once."""
        return Options(**{**self.settings, **self.own.settings})

    @property
    def own(self) -> Group:
        """The group of the handle."""
        return self.groups[self.group]

    def course(self, offset: int) -> Course:
        """Return how far a message has come in the handle's group."""
        return course_in(self, self.own, offset)

    def live(self) -> list[int]:
        """Return the messages that the handle's group has not finished, dead letters too."""
        own = self.own
        known = own.courses
        every = range(own.start, len(self.messages))
        return [offset for offset in every if offset not in known or known[offset].state != "done"]


def with_settings(state: State, changed: Mapping[str, Any], reset: Iterable[str] = ()) -> State:
    """Return the state in which settings of the queue, and of the handle's group, are stored or have their defaults."""
    own, reset = state.own, set(reset)
    of_group = {name: value for name, value in {**own.settings, **changed}.items() if name in OF_GROUP - reset}
    of_queue = {name: value for name, value in {**state.settings, **changed}.items() if name not in OF_GROUP | reset}
    return replace(with_group(state, replace(own, settings=of_group)), settings=of_queue)


def course_in(state: State, group: Group, offset: int) -> Course:
    """Return how far a message has come in a group; one that nobody has touched is as it was put."""
    known = group.courses.get(offset)
    if known is not None:
        return known
    if offset < group.start:
        return Course("done")
    message = state.messages[offset]
    # work-queue.md, "What comes next", 3: aside is what waited for its time or its turn; when the reader puts it there
    # is not said, so one that asked for either may stand on either side until it is passed.
    asked = message.not_before > message.put_at or message.order_key is not None or message.priority > 0
    place = "either" if asked or state.has_priorities else "log"
    at = message.not_before
    return Course(
        ready_at=Span(at, at),
        place=place,
        rank=(offset, 0),
        may_be_gone=offset in group.missing,
        is_left_out=group.answer(message) is False,
    )


def with_course(state: State, offset: int, course: Course) -> State:
    """Return the state in which one message has come further."""
    own = state.own
    return with_group(state, replace(own, courses={**own.courses, offset: course}))


def with_group(state: State, group: Group, name: str | None = None) -> State:
    """Return the state in which one group is another."""
    return replace(state, groups={**state.groups, name or state.group: group})


def expect(allowed: bool, rule: str, expected: object, answer: object) -> None:
    """Raise where an answer is not allowed."""
    if not allowed:
        raise DisagreementError(f"{rule}: expected {expected}, got {answer}")
