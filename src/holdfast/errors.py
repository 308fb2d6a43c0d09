"""Every error Holdfast raises, ordered by the action that the caller should take.

``UsageError``: fix your code. ``NotFoundError``: name something that exists. ``RetryableError``: wait and try again.
``LeaseError``: take the message again. ``StorageError``: call the operator. ``SerializationError``: the payload is not
of the expected kind.

Each error keeps its context as keyword attributes, and survives pickling, because it may cross processes. It has a
stable ``code`` for metrics and exit codes, and reads as one line: the event, and the advice.
"""

from __future__ import annotations

import queue as _standard
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

Empty = _standard.Empty
Full = _standard.Full

if sys.version_info >= (3, 13):
    _StandardShutDown = _standard.ShutDown
else:
    _StandardShutDown = Exception


NOTHING_CAME = "no message came within the timeout"
NO_ROOM = "the queue had no room within the timeout, nothing was written: take and acknowledge messages, or wait longer"
SHUT_DOWN = "the queue was shut down: it takes nothing more, open it again to put or to take"


class ShutDown(_StandardShutDown):  # the standard library's name
    """The queue was shut down: nothing can be put, and nothing is left to be taken, or to be waited for.

    From Python 3.13 on it is a ``queue.ShutDown``.

    Attributes
    ----------
    left : dict of str to int
        Messages that stay in the queue, by the reason why this take did not wait for them: "not_taken", "in_hand",
        "backing_off", "delayed", "order_key", "prepared", "paused". Empty if there are none, and behind a put.
    left_count : int
        How many that are.
    """

    def __init__(self, message: str = SHUT_DOWN, left: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.left = dict(left or {})

    @property
    def left_count(self) -> int:
        """The number of messages that stay in the queue."""
        return sum(self.left.values())


class HoldfastError(Exception):
    """Base of all errors of this package.

    Attributes
    ----------
    code : str
        Stable identifier of the kind of error, for metrics and exit codes.
    context : dict
        The keyword arguments; each is an attribute too.
    """

    code: ClassVar[str] = "holdfast"

    def __init__(self, message: str, **context: Any) -> None:
        super().__init__(message)
        self.context = context

    def __getattr__(self, name: str) -> Any:
        context = self.__dict__.get("context", {})
        if name in context:
            return context[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0], self.context)


def _rebuild(kind: type[HoldfastError], message: str, context: dict[str, Any]) -> HoldfastError:
    return kind(message, **context)


class UsageError(HoldfastError):
    """The call is wrong; fix the code that made it."""

    code = "usage"


class ClosedError(UsageError):
    """The queue was closed; open it again."""

    code = "closed"


class ForkedError(UsageError):
    """The handle was inherited through ``fork``; open the queue in the child, or leave it to the parent."""

    code = "forked"


class ConfigError(UsageError):
    """A name, a path or an option that cannot work."""

    code = "config"


class TransactionStateError(UsageError):
    """The verb does not fit the state of the transaction. Attributes: ``transaction`` (its id), ``state``."""

    code = "transaction_state"


class RecordTooLargeError(UsageError):
    """A record or a batch larger than its bound; nothing was written. Attributes: ``size_bytes``, ``max_bytes``."""

    code = "record_too_large"


class NotFoundError(HoldfastError):
    """Something that was named does not exist."""

    code = "not_found"


class QueueNotFoundError(NotFoundError):
    """No queue at that path. Attribute: ``path``."""

    code = "queue_not_found"


class GroupNotFoundError(NotFoundError):
    """No consumer group of that name. Attributes: ``group``, ``groups``."""

    code = "group_not_found"


class TransactionNotFoundError(NotFoundError):
    """No transaction of that id is in doubt, and none was decided as far back as is remembered. Attribute: ``id``."""

    code = "transaction_not_found"


class RetryableError(HoldfastError):
    """Wait, then try again."""

    code = "retryable"


class QueueLockedError(RetryableError):
    """Another handle owns this side of the queue. Attributes: ``path``, ``pid``, ``host`` (None while unknown)."""

    code = "queue_locked"


class LockTimeoutError(QueueLockedError):
    """The owner did not release the lock within ``lock_timeout``. Attributes as in :class:`QueueLockedError`."""

    code = "lock_timeout"


class LeaseError(HoldfastError):
    """The delivery is no longer yours; take the message again."""

    code = "lease"


class StaleReceiptError(LeaseError):
    """The delivery was already acknowledged or given back, or belongs to another receiver. Attribute: ``offset``."""

    code = "stale_receipt"


class LeaseExpiredError(StaleReceiptError):
    """The lease expired before the delivery was settled; the message was given back. Attribute: ``offset``."""

    code = "lease_expired"


class StorageError(HoldfastError):
    """The disk or the files need an operator. Attribute: ``path``."""

    code = "storage"


class CorruptionError(StorageError):
    """Acknowledged bytes are damaged. Attributes: ``path``, ``position``, ``offsets`` (of lost messages, as ranges)."""

    code = "corruption"

    def __init__(
        self, message: str, *, path: str = "", position: int = 0, offsets: Sequence[range] = (), **context: Any
    ) -> None:
        super().__init__(message, path=path, position=position, offsets=tuple(offsets), **context)


class UnsupportedVersionError(StorageError):
    """The files have another format version; use the Holdfast that wrote them. Attributes: ``path``, ``version``."""

    code = "unsupported_version"


class DiskFullError(StorageError):
    """The disk is full; nothing partial is visible. Drain or free space, then try again. Attribute: ``path``."""

    code = "disk_full"


class CommitUnknownError(StorageError):
    """The sync failed: this commit may be on the disk or not. Reopen the queue and check."""

    code = "commit_unknown"


class PoisonedError(StorageError):
    """An earlier failure left memory and disk possibly apart; nothing was written. Reopen the queue."""

    code = "poisoned"


class FencedError(PoisonedError):
    """Another owner has opened the same queue, so locks do not work here; nothing was written.

    Close the queue and find the other owner: opening it again would take it from them. Attributes: ``path``, ``pid``,
    ``host`` (None while unknown).
    """

    code = "fenced"


class SerializationError(HoldfastError):
    """An object and its bytes do not fit together. Attribute: ``content_type``."""

    code = "serialization"


class EncodeError(SerializationError):
    """The object cannot be put into this queue; nothing was written. Attributes: ``content_type``, ``type``."""

    code = "encode"


class DecodeError(SerializationError):
    """The bytes are not what this program expects. Attributes: ``content_type``, ``offset`` (None while unknown)."""

    code = "decode"


class HeadersError(DecodeError, ValueError):
    """The headers of a message cannot be read, or must be understood and are not; ``get`` returns its payload."""

    code = "headers"


class UnknownContentTypeError(SerializationError):
    """No serializer is registered for it. Attributes: ``content_type``, ``known``."""

    code = "unknown_content_type"


class DrainError(HoldfastError):
    """Some queues of a drain of many failed; the others were drained. Attributes: ``report``, ``errors`` (by queue)."""

    code = "drain"


class WorkerDiedError(HoldfastError):
    """A worker process ended by itself. Attributes: ``pid``, ``exit_code`` (minus the number of a signal)."""

    code = "worker_died"
