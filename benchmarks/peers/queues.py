"""The queues, each opened and used as its documentation says; a library is imported where it is used."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring.load import BATCH
from benchmarks.peers.peer import Handle, Peer, UnavailableError


def _or_none(get: Callable[[], Any], empty: type[Exception]) -> Callable[[], Any]:
    """Return a ``get`` that answers None where the library raises."""

    def get_or_none() -> Any:
        try:
            return get()
        except empty:
            return None

    return get_or_none


# -- Holdfast --------------------------------------------------------------------------------------------------------


def _holdfast(implementation: str) -> Callable[[Path, bool], Handle]:
    def open_queue(folder: Path, is_durable: bool) -> Handle:  # as all of them
        import holdfast

        if holdfast.implementation != implementation:
            raise UnavailableError("the C extension was not built: there was no compiler")
        flush = holdfast.FlushPolicy.every_commit() if is_durable else holdfast.FlushPolicy.never()
        queue = holdfast.PersistentQueue(folder / "queue", flush=flush)
        return Handle(
            queue.put,
            _or_none(lambda: queue.get(timeout=0), holdfast.Empty),
            queue.close,
            queue.put_many,
            lambda count: queue.get_many(count, timeout=0),
            queue.get,
        )

    return open_queue


# -- SQLite ----------------------------------------------------------------------------------------------------------


def _sqlite(folder: Path, is_durable: bool) -> Handle:
    connection = sqlite3.connect(folder / "queue.db", isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if is_durable else 'NORMAL'}")
    connection.execute("CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB NOT NULL)")
    take = "DELETE FROM queue WHERE id IN (SELECT id FROM queue ORDER BY id LIMIT ?) RETURNING id, payload"

    def put_many(payloads: Sequence[bytes]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO queue (payload) VALUES (?)", [(payload,) for payload in payloads])
        connection.execute("COMMIT")

    def get_many(count: int) -> list[bytes]:
        return [payload for _, payload in sorted(connection.execute(take, (count,)).fetchall())]

    def get() -> bytes | None:
        rows = get_many(1)
        return rows[0] if rows else None

    return Handle(
        lambda payload: connection.execute("INSERT INTO queue (payload) VALUES (?)", (payload,)),
        get,
        connection.close,
        put_many,
        get_many,
    )


def _litequeue(folder: Path, is_durable: bool) -> Handle:
    from litequeue import LiteQueue

    queue = LiteQueue(folder / "queue.db")

    def put_many(payloads: Sequence[bytes]) -> None:
        with queue.transaction():
            for payload in payloads:
                queue.put(payload.decode())

    def get() -> bytes | None:
        message = queue.pop()
        if message is None:
            return None
        queue.done(message.message_id)
        return bytes(message.data, "ascii")

    return Handle(lambda payload: queue.put(payload.decode()), get, queue.close, put_many)


def _persist_sqlite(folder: Path, is_durable: bool) -> Handle:
    import persistqueue

    queue = persistqueue.SQLiteQueue(str(folder), auto_commit=True, multithreading=True)
    return Handle(queue.put, _or_none(queue.get_nowait, persistqueue.Empty), queue.close)


def _huey(folder: Path, is_durable: bool) -> Handle:
    from huey.storage import SqliteStorage

    storage = SqliteStorage(filename=str(folder / "huey.db"), fsync=is_durable, timeout=30)

    def get() -> bytes | None:
        data = storage.dequeue()
        return None if data is None else bytes(data)

    return Handle(storage.enqueue, get, storage.close)


def _diskcache(folder: Path, is_durable: bool) -> Handle:
    from diskcache import Cache, Deque

    cache = Cache(str(folder), eviction_policy="none", sqlite_synchronous=2 if is_durable else 1)
    queue = Deque.fromcache(cache)

    def put_many(payloads: Sequence[bytes]) -> None:
        with queue.transact():
            for payload in payloads:
                queue.append(payload)

    def get_many(count: int) -> list[bytes]:
        with queue.transact():
            return [queue.popleft() for _ in range(min(count, len(queue)))]

    return Handle(queue.append, _or_none(queue.popleft, IndexError), cache.close, put_many, get_many)


class _AsIs:
    """A serializer of bytes."""

    def dumps(self, data: bytes, /) -> bytes:
        return data

    def loads(self, data: bytes, /) -> bytes:
        return data


def _localqueue(folder: Path, is_durable: bool) -> Handle:
    from localqueue import DurabilityMode, Empty, SimpleQueue

    mode = DurabilityMode.DURABLE if is_durable else DurabilityMode.RELAXED
    queue: Any = SimpleQueue(str(folder), durability=mode, serializer=_AsIs())

    def wait() -> bytes:
        job = queue.get()
        queue.ack(job)
        return bytes(job.data)

    def get() -> bytes | None:
        job = queue.get_nowait()
        queue.ack(job)
        return bytes(job.data)

    return Handle(
        queue.put, _or_none(get, Empty), queue.close, lambda payloads: queue.put_many(list(payloads)), None, wait
    )


def _honker(folder: Path, is_durable: bool) -> Handle:
    import asyncio

    import honker

    database = honker.open(str(folder / "queue.db"))
    queue = database.queue("queue")

    def put_many(payloads: Sequence[bytes]) -> None:
        with database.transaction() as transaction:
            for payload in payloads:
                queue.enqueue(payload.decode(), tx=transaction)

    def get_many(count: int) -> list[bytes]:
        jobs = queue.claim_batch("worker", count)
        queue.ack_batch([job.id for job in jobs], "worker")
        return [job.payload.encode() for job in jobs]

    def get() -> bytes | None:
        job = queue.claim_one("worker")
        if job is None:
            return None
        job.ack()
        return bytes(job.payload, "ascii")

    runner = asyncio.Runner()

    async def take() -> bytes:
        async for job in queue.claim("worker"):
            job.ack()
            return bytes(job.payload, "ascii")
        raise UnavailableError("it stopped claiming")

    def close() -> None:
        runner.close()
        database.close()

    return Handle(
        lambda payload: queue.enqueue(payload.decode()), get, close, put_many, get_many, lambda: runner.run(take())
    )


# -- Files -----------------------------------------------------------------------------------------------------------


def _persist_files(folder: Path, is_durable: bool) -> Handle:
    import persistqueue

    queue = persistqueue.Queue(str(folder / "queue"), tempdir=str(folder), chunksize=BATCH, autosave=True)
    return Handle(queue.put, _or_none(queue.get_nowait, persistqueue.Empty), lambda: None)


def _queuelib(folder: Path, is_durable: bool) -> Handle:
    from queuelib import FifoDiskQueue

    queue = FifoDiskQueue(str(folder / "queue"))
    return Handle(queue.push, queue.pop, queue.close)


PURE = {"HOLDFAST_PURE": "1"}
"""Has Holdfast leave its extension alone."""

PEERS = (
    Peer("Holdfast, compiled", "holdfast", _holdfast("c"), "every_commit()"),
    Peer("Holdfast, pure Python", "holdfast", _holdfast("python"), "every_commit()", environment=PURE),
    Peer("SQLite by hand", "", _sqlite, "synchronous=FULL", threads="apart", version=sqlite3.sqlite_version),
    Peer("localqueue", "localqueue", _localqueue, "DurabilityMode.DURABLE"),
    Peer("honker", "honker", _honker),
    Peer("huey, SqliteStorage", "huey", _huey, "fsync=True"),
    Peer("litequeue", "litequeue", _litequeue, threads="apart"),
    Peer("diskcache, Deque", "diskcache", _diskcache, "sqlite_synchronous=2"),
    Peer("persist-queue, SQLiteQueue", "persist-queue", _persist_sqlite, "always"),
    Peer("persist-queue, Queue", "persist-queue", _persist_files, processes=False),
    Peer("queuelib, FifoDiskQueue", "queuelib", _queuelib, threads="no", processes=False),
)
