"""Opens the queues of a service's directory, and deletes them: what ``QueueService`` does to one queue at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

from holdfast.clock import Clock
from holdfast.errors import ConfigError, QueueLockedError, UsageError
from holdfast.persistence.filesystem.access import check_around
from holdfast.persistence.filesystem.directories import make_parents
from holdfast.persistence.filesystem.layout import open_if_there
from holdfast.persistence.filesystem.removal import find_remains, remove_remains
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.persistence.ownership.owner_lock import is_owned
from holdfast.queue.engine.deletion import delete_queue
from holdfast.queue.options.queue_options import Mode, Options, check_options
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.serializers.codec import Codec
from holdfast.serializers.registry import Registry
from holdfast.service.configuration.config import Config
from holdfast.service.failover import FailoverSource
from holdfast.service.open_options import OpenedWith
from holdfast.service.queue_names import CONFIG_NAME
from holdfast.service.typed_queue import TypedQueue
from holdfast.service.workers.processes.lazy_queue import LazyQueue
from holdfast.service.workers.processes.worker_role import is_worker_process

logger = logging.getLogger("holdfast")


class Ports(TypedDict):
    """What all queues of a service are given: see :class:`PersistentQueue`."""

    redact: Callable[[str], str] | None
    storage: Storage
    clock: Clock


class QueueOpener:
    """Opens and deletes queues. The caller sees to it that one thread at a time does.

    Parameters
    ----------
    path : Path
        The service's directory.
    config : Config
        What operators have set there.
    registry : Registry
        The serializers.
    ports : Ports
        What all queues are given.
    mode, can_own
        How queues are opened if the program does not say it for one of them.

    Raises
    ------
    ConfigError
        There is no such mode, or it does not fit to ``can_own``.
    """

    def __init__(
        self, path: Path, config: Config, registry: Registry, ports: Ports, mode: Mode, *, can_own: bool
    ) -> None:
        check_options(Options(mode, DEFAULT_GROUP, can_own=can_own))
        self._path = path
        self._config = config
        self._registry = registry
        self._ports = ports
        self._mode = mode
        self._can_own = can_own
        self._has_looked_for_remains = False

    def opened_with(self, name: str, type: Any, settings: Mapping[str, Any]) -> OpenedWith:
        """Return the program's options of a queue, completed by those of the service and by the configuration."""
        mode = settings.get("mode", self._mode)
        own: dict[str, Any] = {"mode": mode}
        if mode == "shared" and not self._can_own:
            own["can_own"] = False
        merged = self._config.options(name, {**own, **settings})
        return OpenedWith(type, settings, merged, self._config.asked(name, settings), self._config.chosen(name))

    def source(self, option: str, *, is_programs: bool) -> str:
        """Return who has said the value of an option that no place is known of, for errors."""
        return "the program" if is_programs else "the service" if option in ("mode", "can_own") else "the default"

    def open(self, name: str, settings: OpenedWith) -> TypedQueue[Any]:
        """Open a queue; raises as :meth:`QueueService.queue`, and then nothing stays open."""
        codec: Codec[Any] = Codec(self._registry, **settings.codec_options)
        options = settings.queue_options
        if is_worker_process():
            return self._open_in_worker_process(name, codec, settings)
        if options["mode"] != "read_only":
            self._make_directory()
        try:
            raw = PersistentQueue(self._path / name, **self._ports, **options)
        except ConfigError as error:
            key = error.context.get("key") or ""
            is_programs = key in settings.given and key not in settings.configured
            placed = error if is_programs else self._config.placed(name, key, error)
            if placed is error:
                raise
            raise placed from None
        try:
            failover = FailoverSource(raw, partial(self._open_elsewhere, options=settings.handle_options))
            for path in settings.also_read:
                failover.watch(self._path / path)
            return TypedQueue(name, raw, codec, failover)
        except BaseException:
            raw.close()
            raise

    def _open_in_worker_process(self, name: str, codec: Codec[Any], settings: OpenedWith) -> TypedQueue[Any]:
        """Open a queue beside the process that has started this one: a client, which nothing waits for."""
        options = settings.handle_options
        path = self._path / name
        open_client = partial(self._open_as_client, path, any_file_system=options.get("any_file_system", False))
        raw = cast(PersistentQueue, LazyQueue(path, open_client))
        return TypedQueue(name, raw, codec, FailoverSource(raw, partial(self._open_elsewhere, options=options)))

    def _open_as_client(self, path: Path, *, any_file_system: bool) -> PersistentQueue:
        """Open a queue in a worker process; raises QueueLockedError if the service does not share it."""
        try:
            return PersistentQueue(path, mode="shared", can_own=False, any_file_system=any_file_system, **self._ports)
        except QueueLockedError as error:
            if is_owned(self._ports["storage"], path):  # by one that does not answer
                raise
            owner = "another process" if error.pid is None else f"process {error.pid} on {error.host}"
            raise type(error)(
                f"{owner} has {path} open with mode='exclusive', so a worker process puts nothing there: open the "
                "service with mode='shared', or handle the messages in threads, without processes=",
                **error.context,
            ) from None

    def _open_elsewhere(self, path: Path, mode: str, options: Mapping[str, Any]) -> PersistentQueue:
        """Open the queue of another node; a missing directory is not made."""
        options = {name: value for name, value in options.items() if name != "can_own"}
        if mode != "read_only":
            PersistentQueue(path, **{**options, **self._ports, "mode": "read_only"}).close()
        return PersistentQueue(path, **{**options, **self._ports, "mode": mode, "lock_timeout": 0})

    def _make_directory(self) -> None:
        storage = self._ports["storage"]
        with storage_errors("making the service's directory", self._path):
            make_parents(storage, self._path / CONFIG_NAME)  # the service's directory too, durably
            if not self._has_looked_for_remains:
                self._has_looked_for_remains = True
                for name, remains in find_remains(storage, self._path):
                    logger.warning("removing %s: the deletion of queue %r was cut off", remains, name)
                    self.remove(name, remains)
            found = open_if_there(storage, self._path / "queue.json")
            check_around(storage, self._path)
        if found is not None:
            found.close()
            raise ConfigError(
                f"{self._path} is a queue, not a service: open QueueService({str(self._path.parent)!r}) and its queue "
                f"{self._path.name!r}, or choose another directory"
            )

    # -- Deleting ----------------------------------------------------------------------------------------------------

    def delete(self, name: str) -> Path:
        """Take a queue out of its place; return where its files are now, for :meth:`remove`.

        Raises as :meth:`QueueService.delete_queue`.
        """
        path = self._path / name
        return delete_queue(self._ports["storage"], self._ports["clock"], path, partial(self._check_decided, path))

    def _check_decided(self, path: Path) -> None:
        with PersistentQueue(path, mode="read_only", **self._ports) as queue:
            if count := queue.prepared_count():
                raise UsageError(
                    f"{path} has {count} undecided transactions (`holdfast prepared`): commit or abort them first"
                )

    def remove(self, name: str, remains: Path) -> None:
        """Remove the files of a deleted queue; what stays is removed by the next start."""
        try:
            remove_remains(self._ports["storage"], remains)
        except OSError as error:
            logger.warning("queue %r is deleted, but %s stays until the next start: %s", name, remains, error)
