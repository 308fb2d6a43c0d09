"""Does with real queues what they can do, over a storage that writes down every verb it is asked for.

``python -m support.workloads.seam_work ROOT NOTES`` runs in a process of its own, so that its system calls can be
held against the notes: ``tests/crash/proofs/test_nothing_goes_around_the_seam.py``.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from holdfast import Empty, FlushPolicy, PersistentQueue, Put, transaction, verify
from holdfast.queue.client.staging import STAGED_BYTES
from support.builders.settings import set_first
from support.owners.machine_link import machine_links
from support.storages.noted_storage import NotedStorage

WATCHED = ("open", "os.", "fcntl.", "shutil.", "mmap.", "tempfile.", "sqlite3.")
"""Events of Python's audit hooks that may touch a file."""


def work(root: Path, storage: NotedStorage) -> None:
    """Use every verb of a queue that touches the disk, under every policy; open, close and reopen."""
    for policy in (FlushPolicy.every_commit(), FlushPolicy.every(commits=3), FlushPolicy.never()):
        _one_queue(root / "orders", policy, storage)
    _two_queues(root, storage)
    _beside_an_owner(root / "orders", storage)
    for path in sorted(root.iterdir()):
        assert not verify(path, storage=storage).damage


def _open(path: Path, storage: NotedStorage, **options: object) -> PersistentQueue:
    return PersistentQueue(path, storage=storage, data_file_bytes=16 * 2**10, **{"mode": "exclusive", **options})  # type: ignore[arg-type]


def _one_queue(path: Path, policy: FlushPolicy, storage: NotedStorage) -> None:
    set_first(path, storage=storage, flush=policy)
    with _open(path, storage, flush=policy, max_deliveries=2, backoff=[]) as queue:
        queue.configure(maxsize=10**6, lease_seconds=60)
        queue.configure(reset=["maxsize", "lease_seconds"])
        queue.groups.create("audit")
        for number in range(30):
            queue.put(b"%d" % number * 300)
        queue.put_many([Put(b"urgent", priority=5), Put(b"late", delay=3600)])
        queue.put(b"once", dedup_id="1")
        queue.get_many(20)
        with queue.receive() as delivery:
            delivery.payload.decode()
        for _ in range(2):
            queue.receive().nack(delay=0)
        queue.receive().reject("bad")
        queue.pause()
        queue.resume()
        queue.dead.retry(queue.dead.list())
        _transactions(queue)
        queue.flush()
        queue.groups.delete("audit")
        with suppress(Empty):
            while True:
                queue.get_many(100, timeout=0)


def _transactions(queue: PersistentQueue) -> None:
    queue.put_many([b"a", b"b", b"c"])
    with queue.transaction() as tx:
        tx.ack(tx.receive(timeout=0))
        tx.put(b"result")
    tx = queue.begin()
    tx.put_stream([bytes(3000)] * 3)
    tx.abort()
    for id, payloads in (("small", [b"x"]), ("large", [bytes(1000)] * 6), ("none", [b"y"])):
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        tx.put_many(payloads)
        tx.prepare(id)
    queue.commit_prepared("small")
    queue.commit_prepared("large")
    queue.abort_prepared("none")
    part = queue.begin()
    part.put(b"part")
    version = (queue.joint_commits.latest("nightly") or 0) + 1
    queue.joint_commits.commit("nightly", version, [part.prepare(part_of=("nightly", version))])


def _two_queues(root: Path, storage: NotedStorage) -> None:
    with _open(root / "in", storage) as source, _open(root / "out", storage) as target:
        source.put(b"message")
        with transaction(source, target) as tx:
            delivery = tx.receive(source, timeout=0)
            tx.put(target, delivery.payload)
            tx.ack(source, delivery)


def _beside_an_owner(path: Path, storage: NotedStorage) -> None:
    """Put through the owner, without its socket, which is no file of a queue; and look."""
    with (
        machine_links(),
        _open(path, storage, mode="shared") as owner,
        _open(path, storage, mode="shared") as client,
        _open(path, storage, mode="read_only") as look,
    ):
        client.put_many([b"asked for", b"too", bytes(STAGED_BYTES)])
        assert look.stats().depth > 0
        assert client.get(timeout=10)
        owner.put(b"across")
        assert client.get_many(3, timeout=10)


def main(root: Path, notes: Path) -> None:
    """Do the work below ``root``; leave what was asked of the storage, and what was done beside it, in ``notes``."""
    storage = NotedStorage()
    beside: list[str] = []

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if not event.startswith(WATCHED) or storage.notes.is_inside():
            return
        if any(isinstance(each, str | bytes | os.PathLike) and f"{root}/" in os.fsdecode(each) for each in arguments):
            beside.append(f"{event}{arguments}")

    sys.addaudithook(audit)
    work(root, storage)
    told = [verb for verb in storage.notes.verbs if verb[1].startswith(f"{root}/")]
    notes.write_text(json.dumps({"verbs": told, "beside": beside}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
