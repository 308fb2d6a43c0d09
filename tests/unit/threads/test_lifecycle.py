"""A process that forks while queues are open: the child's copies answer ForkedError, the parent's go on.

Each test runs a script in a process of its own, since forking beside threads is a warning, and a warning an error here.
"""

from pathlib import Path

import pytest

from support.processes.children import run_script

OPENING = """
import os, signal, sys, threading, time, warnings
from pathlib import Path
from holdfast import *
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.producer import upkeep

upkeep._IDLE_SECONDS = 0.05  # settled() waits for that
signal.alarm(40)
warnings.filterwarnings("ignore", category=DeprecationWarning)  # forking beside threads is what this is about
path = Path(sys.argv[1]) / "orders"

def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a hang in the child fails too
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def tree():
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}

def settled():
    # until the parent has no more to write for its own sake, as the mark of an idle queue
    while any(thread.name == "holdfast-flusher" for thread in threading.enumerate()):
        time.sleep(0.01)  # the alarm ends what does not end
    return tree()

def is_locked():
    try:
        PersistentQueue(path, mode="exclusive").close()
        return False
    except QueueLockedError:
        return True

def is_held(name):
    lock = locks.try_acquire(OsStorage(), path / name)
    if lock is not None:
        lock.release()
    return lock is None
"""

EVERY_VERB = """
def every_verb(queue, delivery, batch):
    yield lambda: queue.put(b"x")
    yield lambda: queue.put_nowait(b"x")
    yield lambda: queue.put(b"x", timeout=0.1, headers={"a": "b"})
    yield lambda: queue.put_many([b"x", b"y"])
    yield lambda: queue.put_many([])
    yield lambda: queue.get()
    yield lambda: queue.get(timeout=0.1)
    yield lambda: queue.get_nowait()
    yield lambda: queue.get_many(10)
    yield lambda: queue.receive()
    yield lambda: queue.receive_many(10)
    yield lambda: queue.peek()
    yield lambda: next(iter(queue))
    yield lambda: queue.qsize()
    yield lambda: queue.empty()
    yield lambda: queue.full()
    yield lambda: queue.task_done()
    yield lambda: queue.join()
    yield lambda: queue.shutdown()
    yield lambda: queue.shutdown(immediate=True)
    yield lambda: queue.flush()
    yield lambda: queue.stats()
    yield lambda: queue.groups.create("other")
    yield lambda: queue.groups.list()
    yield lambda: queue.groups.delete("default")
    yield lambda: queue.begin()
    yield lambda: queue.transaction()
    yield lambda: transaction(queue)
    yield lambda: queue.prepared()
    yield lambda: queue.commit_prepared("t")
    yield lambda: queue.abort_prepared("t")
    yield lambda: queue.pause()
    yield lambda: queue.resume()
    yield lambda: queue.browse()
    yield lambda: queue.dead
    yield lambda: queue.joint_commits.latest("nightly")
    yield lambda: queue.joint_commits.commit("nightly", 1, [])
    yield lambda: queue.reservations.held()
    yield delivery.ack
    yield delivery.nack
    yield batch.ack
    yield batch.nack

def all_are_refused(queue, delivery, batch):
    for number, verb in enumerate(every_verb(queue, delivery, batch)):
        started = time.monotonic()
        try:
            verb()
        except ForkedError:
            assert time.monotonic() - started < 1, f"verb {number} waited"
            continue
        raise AssertionError(f"verb {number} of every_verb did not raise ForkedError")
"""


@pytest.mark.parametrize("policy", ["every_commit()", "every(commits=10)", "never()"])
def test_every_verb_of_the_child_is_refused_and_the_parent_goes_on(tmp_path: Path, policy: str) -> None:
    """The child gets ForkedError at once and writes nothing, on its way out neither; the parent does not notice."""
    script = f"""
queue = PersistentQueue(path, mode="exclusive", flush=FlushPolicy.{policy}, maxsize=1000)
queue.put_many([b"%d" % number for number in range(10)])
delivery, batch = queue.receive(), queue.receive_many(2)
queue.flush()
before = settled()

def work():
    all_are_refused(queue, delivery, batch)
    queue.close()
    queue.close()
    with queue:
        pass

assert ended(in_child(work)) == 0
assert tree() == before, "the child wrote"
assert is_locked(), "the child unlocked"
delivery.ack()
batch.ack()
assert queue.put(b"more") == 10
assert [queue.get(timeout=0) for _ in range(8)] == [b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"more"]
queue.close()
assert not is_locked()
"""
    run_script(OPENING + EVERY_VERB + script, tmp_path)


def test_a_fork_beside_threads_inside_put_and_get_leaves_no_hang_in_the_child(tmp_path: Path) -> None:
    """Whatever locks the other threads held at that moment, the child is refused at once."""
    script = """
queue = PersistentQueue(path, mode="exclusive", data_file_bytes=16 * 2**10, maxsize=50)
queue.put_many([b"a", b"b", b"c"])
delivery, batch = queue.receive(), queue.receive_many(2)
stop = threading.Event()
counts = {"put": 0, "got": 0}

def produce():
    while not stop.is_set():
        queue.put_many([bytes(1000)] * 3)
        counts["put"] += 3

def consume():
    while not stop.is_set():
        try:
            counts["got"] += len(queue.get_many(5, timeout=0.01))
            queue.task_done()
        except Empty:
            pass

threads = [threading.Thread(target=work) for work in (produce, produce, consume, consume, queue.join)]
for thread in threads:
    thread.start()
for number in range(60):
    assert ended(in_child(lambda: all_are_refused(queue, delivery, batch))) == 0, number
    time.sleep(0.003)
progress = counts["put"], counts["got"]
time.sleep(0.3)
assert counts["put"] > progress[0] and counts["got"] > progress[1], "the parent stands still"
stop.set()
while any(thread.is_alive() for thread in threads[:4]):
    try:
        queue.get_many(100, timeout=0.01)
    except Empty:
        pass
queue.close()
threads[4].join()
with PersistentQueue(path, mode="exclusive") as again:
    assert not again.recovery.damage
"""
    run_script(OPENING + EVERY_VERB + script, tmp_path)


def test_the_lock_of_the_parent_stays_held_while_the_child_lives_and_when_it_has_ended(tmp_path: Path) -> None:
    """A child that closes its copies does not unlock, nor does its end."""
    script = """
queue = PersistentQueue(path, mode="exclusive")
reader, writer = os.pipe()
pid = in_child(lambda: os.read(reader, 1))
assert is_held("write.lock") and is_held("groups/default/read.lock")
os.write(writer, b"x")
assert ended(pid) == 0
assert is_held("write.lock") and is_held("groups/default/read.lock")
queue.close()
assert not is_locked()
"""
    run_script(OPENING + script, tmp_path)


def test_closing_in_the_parent_frees_the_lock_while_a_child_still_lives(tmp_path: Path) -> None:
    """The child has let go of its copies of the lock at birth."""
    script = """
queue = PersistentQueue(path, mode="exclusive")
reader, writer = os.pipe()
born, say = os.pipe()
pid = in_child(lambda: (os.write(say, b"x"), os.read(reader, 1)))
os.read(born, 1)
queue.close()
assert not is_locked()
os.write(writer, b"x")
assert ended(pid) == 0
"""
    run_script(OPENING + script, tmp_path)


def test_a_lock_is_free_once_its_owner_has_died_though_a_child_of_it_lives_on(tmp_path: Path) -> None:
    """Workers that outlive a killed application do not keep its queue from the next one."""
    script = """
reader, writer = os.pipe()
said, say = os.pipe()

def own():
    queue = PersistentQueue(path, mode="exclusive")
    queue.put(b"kept")
    in_child(lambda: (os.write(say, b"%d" % os.getpid()), os.read(reader, 1)))
    time.sleep(30)

owner = in_child(own)
grandchild = int(os.read(said, 20))
assert is_locked()
os.kill(owner, signal.SIGKILL)
ended(owner)
os.kill(grandchild, 0)  # it lives
with PersistentQueue(path, mode="exclusive") as queue:
    assert queue.get(timeout=0) == b"kept"
os.write(writer, b"x")
"""
    run_script(OPENING + script, tmp_path)


def test_a_child_keeps_no_lock_that_another_thread_was_just_taking(tmp_path: Path) -> None:
    """Retiring files takes the groups lock for a moment; a fork at that moment must not keep it for ever."""
    script = """
from holdfast.persistence.filesystem.locks import try_acquire
from holdfast.persistence.filesystem.storage import OsStorage

path.mkdir()
stop = threading.Event()

def lock_and_unlock(name):
    while not stop.is_set():
        deadline = time.monotonic() + 5  # a child lets go as its first act, a moment after its birth
        while (lock := try_acquire(OsStorage(), path / name)) is None:
            assert time.monotonic() < deadline, "a child holds the lock"
        lock.release()

failures = []
threading.excepthook = lambda what: failures.append(what.exc_value)
threads = [threading.Thread(target=lock_and_unlock, args=(name,)) for name in "abc"]
for thread in threads:
    thread.start()
reader, writer = os.pipe()
pids = []
for number in range(80):
    pids.append(in_child(lambda: os.read(reader, 1)))
    time.sleep(0.002)
stop.set()
for thread in threads:
    thread.join()
os.write(writer, b"x" * len(pids))
assert [ended(pid) for pid in pids] == [0] * len(pids)
assert not failures, failures
"""
    run_script(OPENING + script, tmp_path)


def test_a_queue_that_waits_for_nothing_wakes_up_again_after_a_fork(tmp_path: Path) -> None:
    """Threads that were blocked in get when the process forked still get what is put afterwards."""
    script = """
queue = PersistentQueue(path, mode="exclusive")
found = []
thread = threading.Thread(target=lambda: found.append(queue.get(timeout=20)))
thread.start()
time.sleep(0.1)
assert ended(in_child(lambda: None)) == 0
queue.put(b"after the fork")
thread.join()
assert found == [b"after the fork"]
queue.close()
"""
    run_script(OPENING + script, tmp_path)


def test_a_child_can_open_a_queue_of_its_own(tmp_path: Path) -> None:
    """Only the handles from before the fork are void; another queue, or this one once it is free, can be opened."""
    script = """
queue = PersistentQueue(path, mode="exclusive")

def work():
    with PersistentQueue(path.with_name("other"), mode="exclusive") as other:
        other.put(b"x")
        assert other.get(timeout=0) == b"x"
    try:
        PersistentQueue(path, mode="exclusive")
    except QueueLockedError as error:
        assert error.pid == os.getppid()
        return
    raise AssertionError("the child has opened what the parent owns")

assert ended(in_child(work)) == 0
queue.close()
assert ended(in_child(lambda: PersistentQueue(path, mode="exclusive").close())) == 0
"""
    run_script(OPENING + script, tmp_path)


def test_a_forked_child_that_exits_in_order_writes_nothing(tmp_path: Path) -> None:
    """Neither the interpreter's shutdown nor garbage collection touches the parent's files."""
    script = """
queue = PersistentQueue(path, mode="exclusive", flush=FlushPolicy.every(commits=10))
queue.put_many([b"a", b"b"])
held = queue.receive()
queue.flush()
before = settled()
pid = os.fork()
if pid == 0:
    del queue, held
    sys.exit(0)
assert ended(pid) == 0
assert tree() == before
held.ack()
assert is_locked()
queue.close()
"""
    run_script(OPENING + script, tmp_path)


@pytest.mark.parametrize("policy", ["every_commit()", "never()"])
def test_processes_that_multiprocessing_forks_are_refused_and_their_end_costs_the_parent_nothing(
    tmp_path: Path, policy: str
) -> None:
    """They end as Python programs do, with finalizers: one that has used its copies, one that has not, and a pool."""
    script = f"""
import multiprocessing

queue = PersistentQueue(path, mode="exclusive", flush=FlushPolicy.{policy})
queue.put_many([b"%d" % number for number in range(6)])
delivery, batch = queue.receive(), queue.receive_many(2)
tx = queue.begin()
tx.put(b"in the transaction")
queue.flush()
before = settled()

def use_copies():
    all_are_refused(queue, delivery, batch)
    for verb in (lambda: tx.put(b"x"), tx.commit, tx.prepare):
        try:
            verb()
        except (ForkedError, TransactionStateError):
            continue
        raise AssertionError("the child's copy of a transaction works")

def answer(number):
    try:
        return queue.put(b"from the pool")
    except ForkedError:
        return "refused"

fork = multiprocessing.get_context("fork")
for target in (use_copies, os.getpid):
    process = fork.Process(target=target)
    process.start()
    process.join(20)
    assert process.exitcode == 0, process.exitcode
with fork.Pool(2) as pool:
    assert pool.map(answer, range(4)) == ["refused"] * 4
assert tree() == before, "a child wrote"
assert is_held("write.lock") and is_held("groups/default/read.lock"), "a child unlocked"
tx.commit()
delivery.ack()
batch.ack()
assert [queue.get(timeout=0) for _ in range(4)] == [b"3", b"4", b"5", b"in the transaction"]
queue.close()
assert not is_locked()
"""
    run_script(OPENING + EVERY_VERB + script, tmp_path)
