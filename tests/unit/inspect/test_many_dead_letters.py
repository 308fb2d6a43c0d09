"""Dead letters far apart and by the thousand: each is found, and none is paid for twice."""

from contextlib import suppress

import pytest

from holdfast import Empty, PersistentQueue
from support.builders.jobs import Jobs, drained

COUNT = 3000


def bury_every(queue: PersistentQueue, step: int) -> list[int]:
    """Make each so manyth message a dead letter, finish the others, and return the offsets."""
    with suppress(Empty):
        while True:
            with queue.receive_many(500, timeout=0) as batch:
                batch.reject("no", [each for each in batch if each.offset % step == 0])
    return list(range(0, COUNT, step))


@pytest.mark.parametrize("step", [1, 7, 300, 1000])
@pytest.mark.parametrize("file_bytes", [16 * 2**10, 2**20], ids=["many files", "one file"])
def test_each_dead_letter_is_found_wherever_it_stands(step: int, file_bytes: int) -> None:
    """In sealed files, which have an index, and in the one being written; near the last one or far from it."""
    jobs = Jobs()
    with PersistentQueue(
        "/q", mode="exclusive", storage=jobs.storage, clock=jobs.clock, data_file_bytes=file_bytes
    ) as queue:
        for start in range(0, COUNT, 100):
            queue.put_many([b"%d " % number + bytes(number % 50) for number in range(start, start + 100)])
        offsets = bury_every(queue, step)
        assert [letter.offset for letter in queue.dead.list()] == offsets
        assert all(letter.payload.startswith(b"%d " % letter.offset) for letter in queue.dead.list())
        assert queue.dead.retry(offsets[::-2]) == len(offsets[::-2])
        assert [int(payload.split()[0]) for payload in drained(queue)] == sorted(offsets[::-2])
        assert len(queue.dead) == len(offsets) - len(offsets[::-2])
        assert not queue.recovery.damage


@pytest.mark.parametrize("verb", ["list", "retry"])
def test_many_dead_letters_cost_one_pass_over_the_log(verb: str) -> None:
    """Not a new beginning for each, while all consumers wait."""
    jobs = Jobs()
    reads: list[str] = []
    with jobs.open() as queue:
        for start in range(0, COUNT, 100):
            queue.put_many([b"%d" % number for number in range(start, start + 100)])
        offsets = bury_every(queue, 1)
        file_count = queue.stats().file_count

        def note(called: str, path: object) -> None:
            if str(path).endswith(".data"):
                reads.append(called)

        jobs.storage.before_verb = note
        if verb == "retry":
            assert queue.dead.retry(offsets) == COUNT
        else:
            assert len(queue.dead.list()) == COUNT
        jobs.storage.before_verb = None
        assert 0 < len(reads) < 20 * file_count
