"""Holdfast: a transactional, in-process work queue whose messages live in plain files.

>>> from holdfast import QueueService
>>> with QueueService("data/") as service:  # doctest: +SKIP
...     orders = service.queue("orders")
...     orders.put({"number": 42})
...     with orders.receive() as message:
...         print(message.body)

:class:`PersistentQueue` is the queue of bytes below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast import log
from holdfast.errors import (
    ClosedError,
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    DecodeError,
    DiskFullError,
    DrainError,
    Empty,
    EncodeError,
    FencedError,
    ForkedError,
    Full,
    GroupNotFoundError,
    HeadersError,
    HoldfastError,
    LeaseError,
    LeaseExpiredError,
    LockTimeoutError,
    NotFoundError,
    PoisonedError,
    QueueLockedError,
    QueueNotFoundError,
    RecordTooLargeError,
    RetryableError,
    SerializationError,
    ShutDown,
    StaleReceiptError,
    StorageError,
    TransactionNotFoundError,
    TransactionStateError,
    UnknownContentTypeError,
    UnsupportedVersionError,
    UsageError,
    WorkerDiedError,
)

if TYPE_CHECKING:
    from holdfast.compiled import implementation
    from holdfast.messages import Message
    from holdfast.persistence.format.report import Damage, RecoveryReport, VerifyReport
    from holdfast.persistence.log.flush_policy import FlushPolicy
    from holdfast.persistence.verify import verify
    from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch
    from holdfast.queue.engine.log_starts import GroupStart
    from holdfast.queue.inspect.browse import BrowsedMessage
    from holdfast.queue.inspect.dead_letters import DeadLetter, DeadLetters
    from holdfast.queue.inspect.log_reading import LogReading
    from holdfast.queue.inspect.stats import QueueStats
    from holdfast.queue.options.put_options import Put
    from holdfast.queue.options.retry_policy import Backoff
    from holdfast.queue.options.settings import Settings
    from holdfast.queue.persistent_queue import PersistentQueue
    from holdfast.queue.prepared.prepared_transactions import PreparedTransaction
    from holdfast.queue.queues_transaction import QueuesTransaction, transaction
    from holdfast.queue.transactions.transaction import Transaction
    from holdfast.serializers.serializer import Serializer
    from holdfast.service.aio.async_delivery import AsyncDelivery
    from holdfast.service.aio.async_queue import AsyncQueue
    from holdfast.service.aio.async_service import AsyncQueueService
    from holdfast.service.queue_service import QueueService
    from holdfast.service.service_transaction import ServiceTransaction
    from holdfast.service.typed_queue import TypedQueue
    from holdfast.service.workers.handler_errors import Reject, Retry

__version__ = "0.1.0"

log.escape_records()

__all__ = [
    "AsyncDelivery",
    "AsyncQueue",
    "AsyncQueueService",
    "Backoff",
    "BrowsedMessage",
    "ClosedError",
    "CommitUnknownError",
    "ConfigError",
    "CorruptionError",
    "Damage",
    "DeadLetter",
    "DeadLetters",
    "DecodeError",
    "Delivery",
    "DeliveryBatch",
    "DiskFullError",
    "DrainError",
    "Empty",
    "EncodeError",
    "FencedError",
    "FlushPolicy",
    "ForkedError",
    "Full",
    "GroupNotFoundError",
    "GroupStart",
    "HeadersError",
    "HoldfastError",
    "LeaseError",
    "LeaseExpiredError",
    "LockTimeoutError",
    "LogReading",
    "Message",
    "NotFoundError",
    "PersistentQueue",
    "PoisonedError",
    "PreparedTransaction",
    "Put",
    "QueueLockedError",
    "QueueNotFoundError",
    "QueueService",
    "QueueStats",
    "QueuesTransaction",
    "RecordTooLargeError",
    "RecoveryReport",
    "Reject",
    "Retry",
    "RetryableError",
    "SerializationError",
    "Serializer",
    "ServiceTransaction",
    "Settings",
    "ShutDown",
    "StaleReceiptError",
    "StorageError",
    "Transaction",
    "TransactionNotFoundError",
    "TransactionStateError",
    "TypedQueue",
    "UnknownContentTypeError",
    "UnsupportedVersionError",
    "UsageError",
    "VerifyReport",
    "WorkerDiedError",
    "implementation",
    "transaction",
    "verify",
]


_HOMES = {
    "AsyncDelivery": "holdfast.service.aio.async_delivery",
    "AsyncQueue": "holdfast.service.aio.async_queue",
    "AsyncQueueService": "holdfast.service.aio.async_service",
    "Backoff": "holdfast.queue.options.retry_policy",
    "BrowsedMessage": "holdfast.queue.inspect.browse",
    "Damage": "holdfast.persistence.format.report",
    "DeadLetter": "holdfast.queue.inspect.dead_letters",
    "DeadLetters": "holdfast.queue.inspect.dead_letters",
    "Delivery": "holdfast.queue.dispatch.delivery",
    "DeliveryBatch": "holdfast.queue.dispatch.delivery",
    "FlushPolicy": "holdfast.persistence.log.flush_policy",
    "GroupStart": "holdfast.queue.engine.log_starts",
    "LogReading": "holdfast.queue.inspect.log_reading",
    "Message": "holdfast.messages",
    "PersistentQueue": "holdfast.queue.persistent_queue",
    "PreparedTransaction": "holdfast.queue.prepared.prepared_transactions",
    "Put": "holdfast.queue.options.put_options",
    "QueueService": "holdfast.service.queue_service",
    "QueueStats": "holdfast.queue.inspect.stats",
    "QueuesTransaction": "holdfast.queue.queues_transaction",
    "RecoveryReport": "holdfast.persistence.format.report",
    "Reject": "holdfast.service.workers.handler_errors",
    "Retry": "holdfast.service.workers.handler_errors",
    "Serializer": "holdfast.serializers.serializer",
    "ServiceTransaction": "holdfast.service.service_transaction",
    "Settings": "holdfast.queue.options.settings",
    "Transaction": "holdfast.queue.transactions.transaction",
    "TypedQueue": "holdfast.service.typed_queue",
    "VerifyReport": "holdfast.persistence.format.report",
    "implementation": "holdfast.compiled",
    "transaction": "holdfast.queue.queues_transaction",
    "verify": "holdfast.persistence.verify",
}
"""The module of each name that is imported when it is first used: a program loads only what it needs."""


def __getattr__(name: str) -> Any:
    """Import what has not been used yet."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, used or not."""
    return sorted({*globals(), *__all__})
