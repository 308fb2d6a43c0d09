"""``QueueService``: many queues in one directory, typed messages, workers, a catalogue. Opens typed queues."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ClosedError, ConfigError, HoldfastError, UsageError
from holdfast.persistence.filesystem.storage import OsStorage, Storage
from holdfast.persistence.format.report import Damage
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.arguments import absolute_path
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.options.retry_policy import Backoff
from holdfast.queue.options.settings import DEFAULTS
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.queues_transaction import QueuesTransaction
from holdfast.queue.threads import lifecycle
from holdfast.queue.transactions.transaction import TIMEOUT_SECONDS
from holdfast.serializers.registry import Registry
from holdfast.serializers.serializer import Serializer
from holdfast.service.catalog.catalog import Catalog, is_wanted
from holdfast.service.catalog.facts import QueueFacts
from holdfast.service.configuration.config import load_config
from holdfast.service.open_options import (
    DEFAULT_MODE,
    OpenedWith,
    QueueOptions,
    check_settings,
    place_of_call,
    shown_option,
)
from holdfast.service.queue_names import check_queue_name
from holdfast.service.queue_opener import Ports, QueueOpener
from holdfast.service.service_transaction import ServiceTransaction
from holdfast.service.typed_queue import TypedQueue
from holdfast.service.workers.consumer import (
    CONSUMER_OPTIONS,
    Consumer,
    Register,
    check_annotation,
    make_consumer,
    name_of,
    name_of_queue,
)
from holdfast.service.workers.processes.worker_role import is_worker_process
from holdfast.service.workers.workers import GRACE_SECONDS, Workers

Body = TypeVar("Body")
Other = TypeVar("Other")
Third = TypeVar("Third")
Function = TypeVar("Function", bound=Callable[..., Any])


class QueueService:
    """Opens the queues of one directory, each with its type, its settings and its consumers.

    Parameters
    ----------
    path : str or path-like
        The service's directory; each queue is a directory in it. Made when the first queue is.
    mode : "shared", "exclusive" or "read_only"
        How its queues are opened, unless :meth:`queue` says otherwise; the default is that of :class:`PersistentQueue`.
        "shared" lets any number of processes open the same directory, put, and run consumers. docs/processes.md.
    can_own : bool
        Whether this process may own queues of the mode "shared"; as that of :class:`PersistentQueue`.
    serializers : iterable of Serializer
        More than the built-in ones.
    catalog : bool or None
        Whether to keep ``catalog.db`` there, for people and their tools; None: if the extra ``holdfast[catalog]`` is
        installed. docs/catalogue.md.
    redact : callable, str to str
        Takes secrets out of the texts of exceptions and reasons of dead letters, for all queues; as that of
        :class:`PersistentQueue`.
    storage, clock
        The ports to the operating system; tests put others in their place.

    Raises
    ------
    ConfigError
        ``holdfast.toml`` or a variable ``HOLDFAST_*`` cannot work, or the catalogue is asked for without its extra;
        nothing was made.

    Notes
    -----
    Threads share one object. Nothing is locked before a queue is opened, so a module may make its service
    at import time. docs/service.md.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Mode = DEFAULT_MODE,
        can_own: bool = True,
        serializers: Iterable[Serializer] = (),
        catalog: bool | None = None,
        redact: Callable[[str], str] | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = absolute_path(path, "service")
        self._clock = clock or SystemClock()
        self._config = config = load_config(self.path, os.environ)
        ports: Ports = {"redact": redact, "storage": storage or OsStorage(), "clock": self._clock}
        self._opener = QueueOpener(self.path, config, Registry(serializers), ports, mode, can_own=can_own)
        self._lock = threading.RLock()
        self._queues: dict[str, TypedQueue[Any]] = {}
        self._settings: dict[str, OpenedWith] = {}
        self._catalog = self._make_catalog()
        self._keeps_catalog = is_wanted(catalog) and not is_worker_process()
        self._last_facts: list[QueueFacts] = []
        self._was_owner = False
        self._workers = Workers(self.open_for)
        self._is_closed = False
        lifecycle.watch(self)

    # -- Queues ------------------------------------------------------------------------------------------------------

    @overload
    def queue(self, name: str, *, type: type[Body], **settings: Unpack[QueueOptions]) -> TypedQueue[Body]: ...
    @overload
    def queue(
        self, name: str, *, type: tuple[type[Body], type[Other]], **settings: Unpack[QueueOptions]
    ) -> TypedQueue[Body | Other]: ...
    @overload
    def queue(
        self, name: str, *, type: tuple[type[Body], type[Other], type[Third]], **settings: Unpack[QueueOptions]
    ) -> TypedQueue[Body | Other | Third]: ...
    @overload
    def queue(self, name: str, *, type: Any = None, **settings: Unpack[QueueOptions]) -> TypedQueue[Any]: ...
    def queue(self, name: str, *, type: Any = None, **settings: Unpack[QueueOptions]) -> TypedQueue[Any]:
        """Open a queue, or return it if it is open.

        Parameters
        ----------
        name : str
            1 to 100 of ``A-Z a-z 0-9 . _ -`` without a leading dot.
        type : type, or tuple of types
            Of its objects; None: any object that the serializer decodes. docs/serializers.md.
        serializer : str or Serializer
            "json", "msgpack", "raw", "pickle", "protobuf", or one of your own; by default "json", for bytes "raw".
        version : int, or mapping of type to int
            Of the schema, as this program knows it.
        allow_pickle : bool
            Whether payloads may be pickles. A user who can write into the queue's directory can then run code here.
        compress_bytes : int or None
            Size from which payloads are compressed; None: never.
        also_read : sequence of paths
            Directories of the same queue on nodes that died, as seen from the service's own: messages left there are
            taken too. docs/service.md.
        **settings
            Options of :class:`PersistentQueue`. Options that are not given come from the configuration.

        Raises
        ------
        ConfigError
            A name, a setting or an option that cannot work, or one that is not as the queue was opened with.
        ClosedError
            The service is closed.
        HoldfastError
            As :class:`PersistentQueue`.
        """
        return self.open_queue(name, type, settings)

    def open_queue(
        self, name: str, type: Any, settings: Mapping[str, Any], place: str | None = None
    ) -> TypedQueue[Any]:
        """As :meth:`queue`; ``place`` is where the program says the settings; None: the file and line of the caller."""
        check_queue_name(name)
        check_settings(settings, "queue", "type")
        with self._lock:
            self._check_open()
            found = self._queues.get(name)
            wanted = self._opener.opened_with(name, type, settings)
            if found is None:
                found = self._queues[name] = self._opener.open(name, wanted)
                self._settings[name] = replace(wanted, place=place_of_call() if place is None else place)
                if self._keeps_catalog and (found.raw.is_owner or found.raw.mode == "shared"):
                    self._catalog.start()
            else:
                actual = found.settings if DEFAULTS.keys() & settings.keys() else {}
                if differing := wanted.differing(self._settings[name], actual):
                    raise self._conflict(name, differing, wanted, actual)
            return found

    def _conflict(self, name: str, differing: str, wanted: OpenedWith, actual: Mapping[str, Any]) -> ConfigError:
        """Return the error for a queue that is open with another value of a setting."""
        first = self._settings[name]
        is_programs = differing == "type" or differing in first.given
        place = first.place if is_programs else self._config.place(name, differing)
        return ConfigError(
            f"queue {name!r} is open with {differing}={shown_option(first.value(differing, actual))} "
            f"({place or self._opener.source(differing, is_programs=is_programs)}), not with "
            f"{differing}={shown_option(wanted.value(differing))}: say it once, where the queue is first opened"
        )

    @property
    def queues(self) -> Mapping[str, TypedQueue[Any]]:
        """The queues that are open, by name, as a copy."""
        with self._lock:
            return dict(self._queues)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with all of its messages, for good; if it is open here, it is closed first.

        Parameters
        ----------
        name : str
            The queue.

        Raises
        ------
        UsageError
            A consumer of this service handles it, a prepared transaction of it is undecided, or ``.<name>.removed`` is
            something else than a deleted queue; nothing was deleted.
        QueueLockedError
            Another process, or another handle, has it open; nothing was deleted.
        QueueNotFoundError
            There is none.
        CommitUnknownError
            The sync failed: after a loss of power it may be there again.

        Notes
        -----
        Durability: power loss. A kill leaves the queue, or remains that the next start removes. docs/service.md.
        """
        check_queue_name(name)
        with self._lock:
            self._check_open()
            if is_worker_process():
                raise UsageError(
                    f"a worker process deletes no queue: delete {name!r} in the process that runs the service"
                )
            if (consumer := self._workers.consumers.get(name)) is not None:
                raise UsageError(f"queue {name!r} has the handler {name_of(consumer.handler)}: it is not deleted")
            if (queue := self._queues.get(name)) is not None:
                queue.close()
                del self._queues[name], self._settings[name]
            remains = self._opener.delete(name)
        self._opener.remove(name, remains)

    def adopt(self, path: str | os.PathLike[str], *, name: str | None = None) -> TypedQueue[Any]:
        """Take over the queue of a node that died: messages left there are taken too, with that of the same name here.

        Parameters
        ----------
        path : str or path-like
            The queue's directory, anywhere; it must not have an owner.
        name : str or None
            The queue of this service that it belongs to; None: of the same name.

        Raises
        ------
        QueueLockedError
            Its node lives.
        QueueNotFoundError, ConfigError
            There is no queue, or it takes part already.
        UsageError
            The queue of this service was opened in a mode that does not take.
        """
        adopted = Path(os.path.abspath(path))
        queue = self.queue(name or adopted.name)
        queue.adopt(adopted)
        return queue

    def transaction(self, *, timeout: float = TIMEOUT_SECONDS) -> ServiceTransaction:
        """Begin a transaction over any of the queues: a ``with`` block commits on a clean exit.

        Parameters
        ----------
        timeout : float, seconds
            After so long it aborts.

        Examples
        --------
        >>> with service.transaction() as tx:  # doctest: +SKIP
        ...     order = tx.receive(orders)
        ...     tx.put(invoices, invoice_for(order.body))
        ...     tx.ack(order)
        """
        self._check_open()
        return ServiceTransaction(QueuesTransaction(self._clock, timeout), self._find_queue)

    # -- Consumers ---------------------------------------------------------------------------------------------------

    @overload
    def consumer(
        self,
        queue: TypedQueue[Body],
        *,
        concurrency: int = 1,
        processes: int = 0,
        retry: Backoff | Sequence[float] | None = None,
        type: Any = None,
        **settings: Unpack[QueueOptions],
    ) -> Register[Body]: ...
    @overload
    def consumer(
        self,
        queue: str,
        *,
        concurrency: int = 1,
        processes: int = 0,
        retry: Backoff | Sequence[float] | None = None,
        type: Any = None,
        **settings: Unpack[QueueOptions],
    ) -> Callable[[Function], Function]: ...
    def consumer(
        self,
        queue: str | TypedQueue[Any],
        *,
        concurrency: int = 1,
        processes: int = 0,
        retry: Backoff | Sequence[float] | None = None,
        type: Any = None,
        **settings: Unpack[QueueOptions],
    ) -> Any:
        """Have a function handle the messages of a queue, once :meth:`run` is called; the function stays as it is.

        Parameters
        ----------
        queue : str or TypedQueue
            Opened by :meth:`run` at the latest; one consumer to a queue.
        concurrency : int
            How many messages are handled at a time, in threads.
        processes : int
            The same in processes of their own, for handlers that keep a processor busy; 0: in threads.
        retry : Backoff or sequence of float, seconds
            How long a message waits that failed; None: after the queue's ``backoff``.
        type, **settings
            To open the queue with, as :meth:`queue`. Without a type the handler's annotation counts.

        Raises
        ------
        ConfigError
            An option that cannot work, a function that does not fit, or a second consumer.

        Notes
        -----
        The handler takes the object, or the object and its delivery. When it returns, the message is
        acknowledged. If it raises, the message is delivered again; :class:`Reject` makes it a dead letter,
        :class:`Retry` sets when it is delivered again. docs/workers.md.
        """
        name = name_of_queue(queue, TypedQueue)
        check_settings(settings, "consumer", *CONSUMER_OPTIONS)
        place = place_of_call()

        def register(handler: Function) -> Function:
            if not isinstance(queue, str) and self.queues.get(name) is not queue:
                raise ConfigError(f"{queue!r} does not belong to this service: register it with the one that opened it")
            consumer = make_consumer(
                name,
                handler,
                concurrency=concurrency,
                processes=processes,
                retry=retry,
                type=type,
                settings=dict(settings),
                place=place,
            )
            if consumer.is_async:
                raise ConfigError(f"{name_of(handler)} is async: register it with an AsyncQueueService")
            if not isinstance(queue, str):
                check_annotation(handler, name, queue.codec.types)
            self._workers.add(consumer)
            return handler

        return register

    def run(self, *, grace_seconds: float = GRACE_SECONDS) -> None:
        """Run all consumers until SIGINT or SIGTERM comes, or :meth:`stop`.

        Then nothing more is taken, and messages that were not begun are given back uncounted. A second signal ends it
        at once. In another thread than the main one, which hears no signals, until :meth:`stop`.

        Parameters
        ----------
        grace_seconds : float
            How long handlers have that run. Messages of handlers that still run then are given back when the service is
            closed, and may be handled twice.

        Raises
        ------
        UsageError
            There are no consumers, or they run already.
        ConfigError
            A queue cannot be opened with a consumer's options, or a handler cannot be sent to a worker process.
        HoldfastError
            The error that stops a consumer.
        """
        self._check_open()
        self._workers.run(grace_seconds)

    def stop(self) -> None:
        """Have :meth:`run` return, in whichever thread it is; one that begins later returns at once."""
        self._workers.stop()

    @property
    def workers(self) -> Workers:
        """The consumers, for the command line."""
        return self._workers

    # -- The service itself ------------------------------------------------------------------------------------------

    def rebuild_catalog(self) -> None:
        """Rewrite ``catalog.db`` from the queues' files. docs/catalogue.md.

        Raises
        ------
        ConfigError
            The extra ``holdfast[catalog]`` is not installed.
        StorageError
            It cannot be written.
        LockTimeoutError
            Another process is writing it, for long.
        """
        self._catalog.rebuild()

    def close(self) -> None:
        """Stop the consumers, and close all queues; again closes queues that an interruption left open.

        A handler that calls it continues, and its message is acknowledged: :meth:`run` closes once handlers have ended.
        """
        if not self._workers.close(then=self.close):
            return
        with self._lock:
            if self._keeps_catalog:
                self._last_facts, self._was_owner = self._facts(), self._is_owner()
            self._is_closed = True
        with ExitStack() as stack:  # each is closed, even if closing another one fails, and the catalogue tells it
            stack.callback(self._catalog.stop)
            for queue in self._queues.values():
                stack.callback(queue.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<QueueService {self.path}, {len(self._queues)} queues open{', closed' * self._is_closed}>"

    # -- Inside ------------------------------------------------------------------------------------------------------

    def forget_after_fork(self) -> None:
        """In a forked child: leave the lock to the thread of the parent that may hold it; the queues forget too."""
        self._lock = threading.RLock()
        self._catalog = self._make_catalog()
        self._workers.forget_after_fork()

    def _make_catalog(self) -> Catalog:
        dropped = weakref.proxy(self)  # raises ReferenceError if the service was dropped: the catalogue keeps none

        def facts() -> list[QueueFacts]:
            found: list[QueueFacts] = dropped._facts()
            return found

        return Catalog(self.path, facts, configured=self._config.options, is_keeper=lambda: bool(dropped._is_owner()))

    def open_for(self, consumer: Consumer) -> TypedQueue[Any]:
        """Open the queue of a consumer with its options, or return it if it is open."""
        with self._lock:
            is_open = consumer.queue_name in self._queues
            kind = consumer.type if is_open else consumer.declared_type()
            return self.open_queue(consumer.queue_name, kind, consumer.settings, consumer.place)

    def _facts(self) -> list[QueueFacts]:
        """Return the facts that the catalogue cannot find in the files; after closing, the last ones."""
        with self._lock:
            if self._is_closed:
                return self._last_facts
            facts = []
            for name, queue in self._queues.items():
                damage = _damage_of(queue.raw)
                content_types = (queue.codec.content_type,)
                facts.append(QueueFacts(name, queue.path, self._settings[name].merged, content_types, damage))
            return facts

    def _is_owner(self) -> bool:
        """Whether this process owns a queue, or did so until the end; others are shared, and their owners write."""
        with self._lock:
            if self._is_closed:
                return self._was_owner
            return any(queue.raw.is_owner for queue in self._queues.values())

    def _find_queue(self, delivery: Delivery) -> PersistentQueue:
        """Return the queue that a delivery comes from."""
        for queue in self.queues.values():
            for raw in queue.failover.queues:
                if raw.has_handed_out(delivery):
                    return raw
        raise UsageError(f"{delivery!r} is not of a queue that this service has open")

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the service of {self.path} is closed; make a new one")


def _damage_of(queue: PersistentQueue) -> Sequence[Damage]:
    """Return what opening and reading have met; of a queue that another process owns nothing, so it is not asked."""
    if queue.mode == "shared" and not queue.is_owner:
        return ()
    try:
        found = queue.recovery
    except HoldfastError:  # it has ended meanwhile: closing must not wait for the next owner, or fail
        return ()
    return (*found.damage, *found.progress_damage)
