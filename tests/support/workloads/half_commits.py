"""What a kill leaves of a commit over two queues: one has prepared, and the other has decided or has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import holdfast
from holdfast.queue.options.queue_options import Mode
from support.builders.transactions import open_queue
from support.storages.simulated_storage import SimulatedStorage

HUB = Path("/hub")
"""The queue whose log decides: it is named first, and puts."""

ASIDE = Path("/aside")
"""The queue that prepares."""

NEITHER = ([b"one", b"two"], [b"one", b"two"])
BOTH = ([b"one", b"two", b"new"], [b"two", b"new"])


def crash_in_commit(
    when: Callable[[str, Path], bool], *, mode: Mode = "exclusive", is_power_lost: bool = False
) -> SimulatedStorage:
    """Return what a kill leaves at the first storage call of a commit for which ``when`` holds; or a loss of power."""
    storage = SimulatedStorage()
    left: list[SimulatedStorage] = []
    with open_queue(storage, HUB, mode=mode) as hub, open_queue(storage, ASIDE, mode=mode) as aside:
        for queue in (hub, aside):
            queue.put_many([b"one", b"two"])
        tx = holdfast.transaction(hub, aside)
        tx.put(hub, b"new")
        tx.put(aside, b"new")
        tx.ack(aside, tx.receive(aside, timeout=0))

        def watch(verb: str, path: Path) -> None:
            if not left and when(verb, path):
                left.append(storage.crash_dropping_unsynced() if is_power_lost else storage.crash_keeping_all())

        storage.before_verb = watch
        tx.commit()
        storage.before_verb = None
    assert left, "the commit never came there"
    return left[0]


def writes_log(queue: Path, verb: str, path: Path) -> bool:
    """Whether a storage call appends to a queue's log; a file goes by the name that it was made under."""
    return verb == "write_at" and path.parent in (queue / "data", queue / "spare")


def voted() -> SimulatedStorage:
    """Return a disk where the one has prepared and the other has not decided."""
    return crash_in_commit(lambda verb, path: writes_log(HUB, verb, path))


def decided() -> SimulatedStorage:
    """Return a disk where the other has decided and the one does not know it."""
    return crash_in_commit(lambda verb, path: writes_log(ASIDE, verb, path))


OUTCOMES: dict[str, tuple[Callable[[], SimulatedStorage], tuple[list[bytes], list[bytes]]]] = {
    "voted": (voted, NEITHER),
    "decided": (decided, BOTH),
}
"""How to get there, and what waits in the two queues in the end."""
