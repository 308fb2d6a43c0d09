"""What a queue offers beyond puts, takes and transactions: pausing, browsing, dead letters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime

from holdfast.errors import UsageError
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.inspect.browse import BrowsedMessage, Browser
from holdfast.queue.inspect.dead_letters import DeadLetters
from holdfast.queue.options.arguments import check_count
from holdfast.queue.options.put_options import instant_ns
from holdfast.queue.remote.group_verbs import PAUSE, RESUME
from holdfast.queue.server.group_asker import GroupAsker


class Working(ABC):
    """The verbs of :class:`PersistentQueue` that see to a group as a whole. docs/work-queue.md."""

    sides: QueueHandle
    _group_asker: GroupAsker

    @abstractmethod
    def _check_open(self) -> None:
        """Raise where the queue is not open."""

    def pause(self, until: datetime | float | None = None, reason: str | None = None) -> None:
        """Hand out nothing, in this process and after restarts; puts go on, and what is in hand can be settled.

        Works from every process, whoever owns the group.

        Parameters
        ----------
        until : datetime with a time zone, or float, seconds since the epoch
            When it ends by itself; None: with :meth:`resume`.
        reason : str
            For whoever wonders; ``stats().paused`` shows it.
        """
        self._check_open()
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"a reason is a str, not {type(reason).__name__}")
        until_ns = None if until is None else instant_ns(until, "until")
        self._group_asker.do({"verb": PAUSE, "until_ns": until_ns, "reason": reason})

    def resume(self) -> None:
        """Hand messages out again; from every process, as :meth:`pause`."""
        self._check_open()
        self._group_asker.do({"verb": RESUME})

    def browse(self, state: str = "ready", *, limit: int = 100, after: int | None = None) -> list[BrowsedMessage]:
        """Return messages of one state, in offset order, and change nothing.

        Parameters
        ----------
        state : "ready", "leased", "delayed" or "dead"
            A message that waits for its order key is ready. Another process sees those as leased that were handed out,
            also where their owner has died since.
        limit : int
            How many at most.
        after : int
            The offset behind which to begin: that of the last message of the page before.

        Raises
        ------
        UsageError
            Another state; or a mode that cannot read.
        """
        self._check_open()
        return self._browser().browse(state, check_count(limit), after)

    @property
    def dead(self) -> DeadLetters:
        """The dead letters of this group."""
        self._check_open()
        return DeadLetters(self.sides, self._browser, self._group_asker.do)

    def _browser(self) -> Browser:
        self._check_open()
        if self.sides.look_side is None and self.sides.read_side is None:
            raise UsageError(
                f"{self.sides.path} was opened with mode='produce', which does not read; use 'look' beside it"
            )
        return Browser(self.sides)
