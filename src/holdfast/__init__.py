"""Holdfast: a transactional, in-process work queue whose messages live in plain files.

>>> from holdfast import PersistentQueue
>>> with PersistentQueue("orders") as queue:  # doctest: +SKIP
...     queue.put(b"order 42")
...     with queue.receive() as delivery:
...         print(delivery.payload)
"""

from __future__ import annotations

from holdfast.errors import (
    ClosedError,
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    DiskFullError,
    Empty,
    ForkedError,
    Full,
    GroupNotFoundError,
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
    ShutDown,
    StaleReceiptError,
    StorageError,
    TransactionNotFoundError,
    TransactionStateError,
    UnsupportedVersionError,
    UsageError,
)
from holdfast.messages import Message
from holdfast.persistence.flush_policy import FlushPolicy
from holdfast.persistence.report import Damage, RecoveryReport, VerifyReport
from holdfast.persistence.verify import verify
from holdfast.queue.browse import BrowsedMessage
from holdfast.queue.dead_letters import DeadLetter, DeadLetters
from holdfast.queue.delivery import Delivery, DeliveryBatch
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.prepared_transactions import PreparedTransaction
from holdfast.queue.put_options import Put
from holdfast.queue.queues_transaction import QueuesTransaction, transaction
from holdfast.queue.retry_policy import Backoff
from holdfast.queue.stats import QueueStats
from holdfast.queue.transaction import Transaction

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "BrowsedMessage",
    "ClosedError",
    "CommitUnknownError",
    "ConfigError",
    "CorruptionError",
    "Damage",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "DeliveryBatch",
    "DiskFullError",
    "Empty",
    "FlushPolicy",
    "ForkedError",
    "Full",
    "GroupNotFoundError",
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
    "QueueStats",
    "QueuesTransaction",
    "RecordTooLargeError",
    "RecoveryReport",
    "RetryableError",
    "ShutDown",
    "StaleReceiptError",
    "StorageError",
    "Transaction",
    "TransactionNotFoundError",
    "TransactionStateError",
    "UnsupportedVersionError",
    "UsageError",
    "VerifyReport",
    "transaction",
    "verify",
]
