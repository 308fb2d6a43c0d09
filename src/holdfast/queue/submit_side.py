"""Puts into a queue whose write side another process owns: asks it to commit, and waits for its answer.

A request is a file; whoever renames or removes it first decides what becomes of it. So a put that gives up has either
taken its request back, and nothing was put, or the owner has taken it, and answers. docs/format.md, "Requests".
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from holdfast.clock import Clock
from holdfast.errors import ClosedError, CommitUnknownError, Full, HoldfastError, RetryableError, ShutDown
from holdfast.persistence import locks
from holdfast.persistence.batch_file import BatchFileWriter
from holdfast.persistence.batch_file_reader import BatchSummary, read_summary
from holdfast.persistence.decision import Decision
from holdfast.persistence.format import ANSWER_ERROR, ANSWER_NO_ROOM, ANSWER_SLOTS
from holdfast.persistence.layout import QueueDirectory, is_missing
from holdfast.persistence.mailbox import Answer, Mailbox, remove_quietly
from holdfast.persistence.requests import BATCH, CLAIMED, PREPARE, STAGING, VERB, RequestName, move, write_verb
from holdfast.persistence.storage import Storage, storage_errors
from holdfast.queue.error_text import from_text
from holdfast.queue.fork import forked_error

OWNER_SECONDS = 0.03
"""Without an answer for so long nobody may own the queue: twice an idle owner's pause between two looks."""

ANSWER_SECONDS_MIN = 1.0
"""How long an owner may take to answer where no longer ``timeout`` says so: it may be in the middle of a long sync."""

CLAIMED_SECONDS_MAX = 30.0
"""How long an owner that has taken a request, and does not answer, is waited for beyond ``timeout``."""

PREPARE_SECONDS = 60.0
_CLOSING_SECONDS = 2.0
_LOOK_SECONDS_MIN = 0.05
_LOOK_SECONDS_MAX = 0.4
"""How often to look whether anybody owns the queue: soon where it is likely that nobody does."""

_GONE_SECONDS = {BATCH: 10.0, PREPARE: 0.2, VERB: 0.2}
"""How long a request may be gone before its answer is there. A batch that was adopted is in the log by then: whoever
opens the queue next answers. The others are looked for, or asked again."""

_POLL_SECONDS_MIN = 0.0002
_POLL_SECONDS_MAX = 0.005


class Helper(Protocol):
    """Serves requests where nobody owns the write side."""

    failure: HoldfastError | None

    @property
    def is_there(self) -> bool:
        """Whether it serves just now."""

    def call(self) -> None:
        """Look whether nobody owns it, and if so, serve."""

    def stop(self) -> None:
        """Leave."""

    def forget(self) -> None:
        """In a forked child: close the copies of the handles."""


class SubmitSide:
    """The write side as a handle sees it that does not own it. Threads may share it.

    Parameters
    ----------
    storage, clock, directory, queue_id
        The queue.
    helper : Helper
        Who serves where nobody owns the write side.
    end : callable
        Returns the offset of the message that comes next, as far as this process may see.
    """

    bounds = None

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        directory: QueueDirectory,
        queue_id: bytes,
        helper: Helper,
        end: Callable[[], int],
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._directory = directory
        self._queue_id = queue_id
        self._helper = helper
        self._end = end
        with storage_errors("making", directory.requests):
            storage.make_directory(directory.requests)
        self._mailbox = Mailbox(storage, directory.requests)
        self._slots = threading.Semaphore(ANSWER_SLOTS)
        self._free = deque(range(ANSWER_SLOTS))
        self._rounds = [0] * ANSWER_SLOTS
        self._nothing = threading.Event()  # never set: polls end by their time
        self._refusal: Callable[[], Exception] | None = None
        self._was_alone = True

    @property
    def next_offset(self) -> int:
        """Offset of the message that comes next."""
        return self._end()

    # -- Putting -----------------------------------------------------------------------------------------------------

    def put(self, payload: bytes, headers: bytes, timeout: float | None) -> int:
        """Have one message committed; return its offset."""
        return self.put_many((payload,), timeout, {0: headers} if headers else None).start

    def put_many(
        self, payloads: Sequence[bytes], timeout: float | None, headers: Mapping[int, bytes] | None = None
    ) -> range:
        """Have a batch committed; return its offsets."""
        self._check()
        writer = self.stage(secrets.token_bytes(16))
        try:
            writer.add_many(payloads, headers or {}, self._clock.time_ns())
            return self.submit(writer, timeout)
        except BaseException:
            self._discard(writer)
            raise

    def stage(self, nonce: bytes) -> BatchFileWriter:
        """Begin a batch file that nobody looks at."""
        path = self._directory.requests / f"{self._mailbox.name}-{nonce.hex()}.{STAGING}"
        return BatchFileWriter(self._storage, path, self._queue_id)

    def submit(self, writer: BatchFileWriter, timeout: float | None) -> range:
        """Have a staged batch committed; return its offsets.

        Raises
        ------
        queue.Full, RetryableError
            There was no room, or no answer, within ``timeout``: the request was taken back, nothing was put.
        CommitUnknownError
            The owner has taken the request, and does not say what became of it.
        HoldfastError
            The owner refused: as its own ``put``.
        """
        with self._request(BATCH, timeout) as name:
            nonce, now = secrets.token_bytes(16), self._clock.time_ns()
            decision = Decision(str(name), nonce, writer.message_count, now, waiting_file=name.waiting_file)
            writer.finish(decision)
            try:
                offsets = self._ask(writer.path, name, timeout)
            except (Full, RetryableError):  # its file is back: a transaction may try again
                writer.resume()
                raise
            writer.close()
            return offsets

    def _discard(self, writer: BatchFileWriter) -> None:
        writer.close()
        remove_quietly(self._storage, writer.path)

    # -- Transactions ------------------------------------------------------------------------------------------------

    def prepared_name(self, transaction_id: str) -> str:
        """Return where, below the queue's directory, a prepared batch stands."""
        return f"{self._directory.prepared.name}/{self._directory.batch_file(transaction_id).name}"

    def prepare(self, writer: BatchFileWriter, decision: Decision) -> BatchSummary:
        """Make a batch durable, and have it prepared under its id. Raises as ``WaitingBatches.prepare``."""
        summary = writer.finish(decision)
        writer.sync()
        writer.close()
        path = self._directory.batch_file(decision.id)
        with self._request(PREPARE, PREPARE_SECONDS) as name:
            try:
                self._ask(writer.path, name, PREPARE_SECONDS)
            except CommitUnknownError:
                if not self._is_prepared(path, decision.nonce):
                    raise
        return replace(summary, path=path)

    def _is_prepared(self, path: Path, nonce: bytes) -> bool:
        """Whether a batch has come into ``prepared/``, though nobody says so: who did that died before it answered."""
        with storage_errors("looking for a prepared transaction", path):
            try:
                if read_summary(self._storage, path, self._queue_id).decision.nonce != nonce:
                    return False
            except FileNotFoundError:
                return False
            self._storage.sync_directory(path.parent)
            return True

    def decide(self, verb: str, transaction_id: str, *, force: bool, nonce: bytes | None) -> range:
        """Have a verb on a prepared transaction done; return its offsets. Raises what the owner raises."""
        fields = {"verb": verb, "id": transaction_id, "force": force}
        if nonce is not None:
            fields["nonce"] = nonce.hex()
        while True:
            self._check()
            with self._request(VERB, None) as name:
                staged = name.as_kind(STAGING).path(self._directory)
                with storage_errors("asking", staged):
                    write_verb(self._storage, staged, fields)
                try:
                    return self._ask(staged, name, None)
                except _NoAnswerError:
                    continue  # its owner died in between: doing it again changes nothing
                finally:
                    remove_quietly(self._storage, staged)

    # -- Asking ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _request(self, kind: str, timeout: float | None) -> Iterator[RequestName]:
        """Hold a number for a request, and with it the slot of its answer."""
        self._check()
        if not self._slots.acquire(timeout=None if timeout is None else max(timeout, ANSWER_SECONDS_MIN)):
            raise RetryableError(f"{ANSWER_SLOTS} requests of this handle wait already; nothing was put")
        slot = self._free.popleft()
        try:
            self._rounds[slot] += 1
            yield RequestName(self._mailbox.name, self._rounds[slot] * ANSWER_SLOTS + slot, kind)
        finally:
            self._free.append(slot)
            self._slots.release()

    def _ask(self, staged: Path, name: RequestName, timeout: float | None) -> range:
        """Let the owner see a request, and return what it answers."""
        path = name.path(self._directory)
        self._check()
        with storage_errors("asking", path):
            self._storage.rename(staged, path)
        try:
            return self._await(name, path, staged, timeout)
        except _NoAnswerError:
            raise
        except BaseException:  # interrupted: nobody commits it from here on, unless it is under way
            remove_quietly(self._storage, path)
            raise

    def _await(self, name: RequestName, path: Path, staged: Path, timeout: float | None) -> range:
        """Poll for the answer; see to it that somebody serves; take the request back once ``timeout`` is over."""
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
                return self._result(answer)
            now = self._clock.monotonic()
            patience = timeout if timeout is None or answer is not None else max(timeout, ANSWER_SECONDS_MIN)
            if self._refusal is not None or (patience is not None and now >= started + patience):
                self._take_back(path, staged, answer)
                late_since = now if late_since is None else late_since
                if now - late_since >= (_CLOSING_SECONDS if self._refusal is not None else CLAIMED_SECONDS_MAX):
                    raise CommitUnknownError(
                        f"the owner of {self._directory.root} has taken request {name}, and does not say what became "
                        "of it: nobody knows; look whether it is there",
                        path=str(path),
                    )
            if now >= look_at:
                look_at, look_pause = now + look_pause, min(2 * look_pause, _LOOK_SECONDS_MAX)
                self._see_to_it(path, staged)
                gone_since = None if self._is_there(name) else now if gone_since is None else gone_since
                if gone_since is not None and now - gone_since > _GONE_SECONDS[name.kind]:
                    raise _NoAnswerError(f"request {name} is gone, and nobody has answered it", path=str(path))
            self._clock.wait(self._nothing, pause)
            pause = min(pause * 1.5, _POLL_SECONDS_MAX)

    def _read_answer(self, name: RequestName) -> Answer | None:
        with storage_errors("reading an answer", self._directory.requests):
            return self._mailbox.read(name.number)

    def _result(self, answer: Answer) -> range:
        self._was_alone = self._helper.is_there
        if answer.verdict == ANSWER_ERROR:
            raise from_text(answer.text)
        return answer.offsets

    def _take_back(self, path: Path, staged: Path, answer: Answer | None) -> None:
        """Raise what an unanswered put raises, once its request is taken back; where it cannot be, do nothing."""
        if not self._withdraw(path, staged):
            return
        if self._refusal is not None:
            raise self._refusal()
        if answer is not None:
            raise Full
        owner = locks.read_owner(self._storage, self._directory.write_lock)
        raise RetryableError(
            f"the owner of {self._directory.root} (process {owner.pid} on {owner.host}) does not answer; nothing was "
            "put. Try again, with a larger timeout",
            path=str(self._directory.root),
            pid=owner.pid,
            host=owner.host,
        )

    def _withdraw(self, path: Path, staged: Path) -> bool:
        """Take a request back; False where the owner was faster."""
        with storage_errors("taking a request back", path):
            return move(self._storage, path, staged)

    def _see_to_it(self, path: Path, staged: Path) -> None:
        """Have the request served if nobody owns the queue; raises why that cannot be, where nothing was put."""
        failure, self._helper.failure = self._helper.failure, None
        if failure is not None and self._withdraw(path, staged):
            raise failure
        self._helper.call()

    def _is_there(self, name: RequestName) -> bool:
        """Whether a request waits, or was taken and is under way. An owner may give it back between two looks."""
        kinds = (BATCH, CLAIMED, BATCH) if name.kind == BATCH else (name.kind,)
        return any(self._exists(name.as_kind(kind).path(self._directory)) for kind in kinds)

    def _exists(self, path: Path) -> bool:
        with storage_errors("looking for a request", path):
            try:
                self._storage.open(path, writable=False).close()
            except OSError as error:
                if not is_missing(error):
                    raise
                return False
        return True

    # -- Ending ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    def shut_down(self) -> None:
        """Refuse further puts with queue.ShutDown."""
        self._refusal = self._refusal or ShutDown

    def flush(self) -> None:
        """Do nothing: what was answered is as durable as it will be."""

    def close(self) -> None:
        """Take back what nobody has taken, stop serving, and let go of the mailbox."""
        self._refusal = lambda: ClosedError("the queue is closed; open it again")
        for _ in range(ANSWER_SLOTS):  # every put that is under way ends with an error, or its answer
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


class _NoAnswerError(CommitUnknownError):
    """Neither the request nor an answer is there any more."""
