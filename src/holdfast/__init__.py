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

from typing import TYPE_CHECKING, Any

from holdfast import log
from holdfast.errors import (
    ClosedError,
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    DecodeError,
    DiskFullError,
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
from holdfast.messages import Message
from holdfast.persistence.format.report import Damage, RecoveryReport, VerifyReport
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.persistence.verify import verify
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch
from holdfast.queue.inspect.browse import BrowsedMessage
from holdfast.queue.inspect.dead_letters import DeadLetter, DeadLetters
from holdfast.queue.inspect.stats import QueueStats
from holdfast.queue.options.put_options import Put
from holdfast.queue.options.retry_policy import Backoff
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared.prepared_transactions import PreparedTransaction
from holdfast.queue.queues_transaction import QueuesTransaction, transaction
from holdfast.queue.transactions.transaction import Transaction
from holdfast.serializers.serializer import Serializer
from holdfast.service.queue_service import QueueService
from holdfast.service.service_transaction import ServiceTransaction
from holdfast.service.typed_queue import TypedQueue
from holdfast.service.workers.handler_errors import Reject, Retry

if TYPE_CHECKING:
    from holdfast.service.aio.async_service import AsyncQueueService

__version__ = "0.1.0"

log.escape_records()

__all__ = [
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
    "Empty",
    "EncodeError",
    "FencedError",
    "FlushPolicy",
    "ForkedError",
    "Full",
    "GroupNotFoundError",
    "HeadersError",
    "HoldfastError",
    "LeaseError",
    "LeaseExpiredError",
    "LockTimeoutError",
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
    "transaction",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import what most programs do without: asyncio takes a third of the time that all the rest does."""
    if name == "AsyncQueueService":
        from holdfast.service.aio.async_service import AsyncQueueService

        return AsyncQueueService
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
