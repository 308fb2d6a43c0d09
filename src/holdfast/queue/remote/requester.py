"""Asks the owner of a side, in any process, and waits for its answer. docs/format.md, "Requests".

A request is a file; the first rename or removal decides its fate. So a client that gives up has taken it back, and
nothing was done; or the owner has taken it, and answers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.errors import NO_ROOM, ClosedError, CommitUnknownError, Full, HoldfastError, RetryableError, StorageError
from holdfast.persistence.exchange.mailbox import Answer, Mailbox, remove_quietly
from holdfast.persistence.exchange.requests import (
    ASK,
    BATCH,
    CLAIMED,
    PREPARE,
    STAGING,
    TAKEN,
    VERB,
    RequestName,
    move,
    write_verb,
)
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors
from holdfast.persistence.format.constants import ANSWER_ERROR, ANSWER_NO_ROOM, ANSWER_SLOTS
from holdfast.queue.protocol.error_text import from_text
from holdfast.queue.threads.lifecycle import forked_error
from holdfast.queue.threads.notifier import Flag

OWNER_SECONDS = 0.03
"""Without an answer for so long nobody may own the side: twice an idle owner's pause between two looks."""

ANSWER_SECONDS_MIN = 1.0
"""How long an owner may take to answer where no longer ``timeout`` says so: it may be in the middle of a long sync."""

CLAIMED_SECONDS_MAX = 30.0
"""How long an owner that has taken a request, and does not answer, is waited for beyond ``timeout``."""

_CLOSING_SECONDS = 2.0
_LOOK_SECONDS_MIN = 0.05
_LOOK_SECONDS_MAX = 0.4
"""How often to look whether anybody owns the side: soon where it is likely that nobody does."""

_GONE_SECONDS = {BATCH: 10.0, PREPARE: 0.2, VERB: 0.2, ASK: 0.2}
"""How long a request may be gone before its answer is there. A batch that was adopted is in the log by then: whoever
opens the queue next answers. The others are looked for, or asked again."""

_UNDER_WAY = {BATCH: (BATCH, CLAIMED, BATCH), ASK: (ASK, TAKEN)}
"""The names under which a request that was not answered stands. An owner may give a batch back between two looks."""

_POLL_SECONDS_MIN = 0.0002
_POLL_SECONDS_MAX = 0.005


class Helper(Protocol):
    """Serves requests while the side has no owner."""

    failure: HoldfastError | None

    @property
    def is_there(self) -> bool:
        """Whether it serves just now, or did when it was called last."""

    def call(self) -> None:
        """Serve, if the side has no owner."""

    def stop(self) -> None:
        """Leave."""

    def forget(self) -> None:
        """In a forked child: close the copies of the handles."""


class NoAnswerError(CommitUnknownError):
    """Neither the request nor an answer is there any more."""


class Requester:
    """The requests of one handle to the owner of one side. Threads may share it.

    Parameters
    ----------
    storage, clock, directory
        The queue.
    lock_path : Path
        The lock of the side: names its owner.
    helper : Helper
        Serves while there is no owner.

    Raises
    ------
    DiskFullError, StorageError
        No mailbox can be made.
    """

    def __init__(
        self, storage: Storage, clock: Clock, directory: QueueDirectory, lock_path: Path, helper: Helper
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._directory = directory
        self._lock_path = lock_path
        self._helper = helper
        with storage_errors("making", directory.requests):
            storage.make_directory(directory.requests)
        self._mailbox = Mailbox(storage, directory.requests)
        self._slots = threading.Semaphore(ANSWER_SLOTS)
        self._free = deque(range(ANSWER_SLOTS))
        self._rounds = [0] * ANSWER_SLOTS
        self._nothing = Flag()  # never set: polls end by their time
        self._refusal: Callable[[], Exception] | None = None
        self._was_alone = True

    @property
    def mailbox_name(self) -> str:
        """Of no other handle."""
        return self._mailbox.name

    # -- Asking ------------------------------------------------------------------------------------------------------

    @contextmanager
    def request(self, kind: str, timeout: float | None, group: str = "") -> Iterator[RequestName]:
        """Hold a number for a request, and with it the slot of its answer."""
        self.check()
        if not self._slots.acquire(timeout=None if timeout is None else max(timeout, ANSWER_SECONDS_MIN)):
            raise RetryableError(f"{ANSWER_SLOTS} requests of this handle wait already; nothing was done")
        slot = self._free.popleft()
        try:
            self._rounds[slot] += 1
            yield RequestName(self._mailbox.name, self._rounds[slot] * ANSWER_SLOTS + slot, kind, group)
        finally:
            self._free.append(slot)
            self._slots.release()

    def ask(self, staged: Path, name: RequestName, timeout: float | None) -> Answer:
        """Let the owner see a request, and return its answer.

        Raises
        ------
        queue.Full, RetryableError
            There was no space, or no answer, within ``timeout``: the request was taken back, nothing was done.
        NoAnswerError
            The request is gone without an answer.
        CommitUnknownError
            The owner has taken the request, and does not report its outcome.
        HoldfastError
            The owner refused.
        """
        path = name.path(self._directory)
        self.check()
        with storage_errors("asking", path):
            self._storage.rename(staged, path)
        try:
            answer = self._await(name, path, staged, timeout)
        except NoAnswerError:
            raise
        except StorageError as error:
            raise self._unless_done(error, name, path, staged) from error
        except BaseException:  # interrupted: it is not done from here on, unless it is in progress
            remove_quietly(self._storage, path)
            raise
        if isinstance(answer, HoldfastError):
            raise answer
        return self._result(answer)

    def ask_verb(self, kind: str, fields: dict[str, Any], timeout: float | None, group: str = "") -> Answer:
        """Have a verb done that may be done twice; return the answer. Raises as :meth:`ask`."""
        while True:
            with self.request(kind, timeout, group) as name:
                staged = name.as_kind(STAGING).path(self._directory)
                try:
                    with storage_errors("asking", staged):
                        write_verb(self._storage, staged, fields)
                    return self.ask(staged, name, timeout)
                except NoAnswerError:
                    continue  # its owner died in between: doing it again changes nothing
                finally:
                    remove_quietly(self._storage, staged)

    # -- Waiting -----------------------------------------------------------------------------------------------------

    def _unless_done(self, error: StorageError, name: RequestName, path: Path, staged: Path) -> StorageError:
        """Return the error of a failed wait: the same if the request can be taken back, else an unknown outcome.

        The owner of the side may have served it, and only the answer could not be read.
        """
        try:
            if self._withdraw(path, staged):
                return error
        except StorageError:
            remove_quietly(self._storage, path)
        if isinstance(error, CommitUnknownError):
            return error
        return CommitUnknownError(
            f"the outcome of request {name} is unknown ({error}): check whether it is done", path=str(path)
        )

    def _await(self, name: RequestName, path: Path, staged: Path, timeout: float | None) -> Answer | HoldfastError:
        """Poll for the answer; serve if there is no owner; take the request back once ``timeout`` is over.

        Returns the answer; or the error of the helper, once the request is taken back.
        """
        started = now = self._clock.monotonic()
        look_at = started if self._was_alone else started + OWNER_SECONDS
        pause, look_pause = _POLL_SECONDS_MIN, _LOOK_SECONDS_MIN
        late_since: float | None = None
        gone_since: float | None = None
        if self._helper.is_there:
            self._helper.call()
        while True:
            answer = self._read_answer(name)
            if answer is not None and answer.verdict != ANSWER_NO_ROOM:
                return answer
            now = self._clock.monotonic()
            patience = timeout if timeout is None or answer is not None else max(timeout, ANSWER_SECONDS_MIN)
            if self._refusal is not None or (patience is not None and now >= started + patience):
                self._take_back(path, staged, answer)
                late_since = now if late_since is None else late_since
                if now - late_since >= (_CLOSING_SECONDS if self._refusal is not None else CLAIMED_SECONDS_MAX):
                    raise CommitUnknownError(
                        f"the owner of {self._directory.root} has taken request {name}, and does not report its "
                        "outcome, which is unknown; check whether it is done",
                        path=str(path),
                    )
            if now >= look_at:
                look_at, look_pause = now + look_pause, min(2 * look_pause, _LOOK_SECONDS_MAX)
                failure = self._see_to_it(path, staged)
                if failure is not None:
                    return failure
                gone_since = None if self._is_there(name) else now if gone_since is None else gone_since
                if gone_since is not None and now - gone_since > _GONE_SECONDS[name.kind]:
                    raise NoAnswerError(
                        f"request {name} is gone without an answer: check whether it is done", path=str(path)
                    )
            self._clock.wait(self._nothing, pause)
            pause = min(pause * 1.5, _POLL_SECONDS_MAX)

    def _read_answer(self, name: RequestName) -> Answer | None:
        with storage_errors("reading an answer", self._directory.requests):
            return self._mailbox.read(name.number)

    def _result(self, answer: Answer) -> Answer:
        self._was_alone = self._helper.is_there
        if answer.verdict == ANSWER_ERROR:
            raise from_text(answer.text)
        return answer

    def _take_back(self, path: Path, staged: Path, answer: Answer | None) -> None:
        """Raise the error of an unanswered request, once it is taken back; if it cannot be, do nothing."""
        if not self._withdraw(path, staged):
            return
        if self._refusal is not None:
            raise self._refusal()
        if answer is not None:
            raise Full(NO_ROOM)
        owner = locks.read_owner(self._storage, self._lock_path)
        raise RetryableError(
            f"the owner of {self._directory.root} (process {owner.pid} on {owner.host}) does not answer; nothing was "
            "done. Try again, with a larger timeout",
            path=str(self._directory.root),
            pid=owner.pid,
            host=owner.host,
        )

    def _withdraw(self, path: Path, staged: Path) -> bool:
        """Take a request back; False if the owner was faster."""
        with storage_errors("taking a request back", path):
            return move(self._storage, path, staged)

    def _see_to_it(self, path: Path, staged: Path) -> HoldfastError | None:
        """Let the helper serve if the side has no owner; return its error, once the request is taken back."""
        failure, self._helper.failure = self._helper.failure, None
        if failure is not None and self._withdraw(path, staged):
            return failure
        self._helper.call()
        return None

    def _is_there(self, name: RequestName) -> bool:
        """Whether a request waits, or was taken and is under way."""
        kinds = _UNDER_WAY.get(name.kind, (name.kind,))
        return any(self._exists(name.as_kind(kind).path(self._directory)) for kind in kinds)

    def _exists(self, path: Path) -> bool:
        with storage_errors("looking for a request", path):
            try:
                self._storage.open(path, writable=False).close()
            except MISSING:
                return False
        return True

    # -- Ending ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error if nothing can be asked any more."""
        if self._refusal is not None:
            raise self._refusal()

    def refuse(self, refusal: Callable[[], Exception]) -> None:
        """Refuse further requests, and take back those that no owner has taken."""
        self._refusal = self._refusal or refusal

    def close(self) -> None:
        """Take back what no owner has taken, stop serving, and close the mailbox."""
        self._refusal = lambda: ClosedError("the queue is closed; open it again")
        for _ in range(ANSWER_SLOTS):  # every request that is under way ends with an error, or its answer
            self._slots.acquire()
        for _ in range(ANSWER_SLOTS):
            self._slots.release()
        self._helper.stop()
        self._mailbox.close()

    def forget(self) -> None:
        """In a forked child: close the copies of the handles."""
        self._refusal = forked_error
        self._helper.forget()
        self._mailbox.forget()
