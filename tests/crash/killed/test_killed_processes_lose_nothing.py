"""SIGKILL at random moments of put, roll, get, ack and file removal: promises 1 to 3 hold.

``HOLDFAST_TEST_KILL_ROUNDS`` makes the run longer, ``HOLDFAST_TEST_SEED`` makes it another one.
"""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from holdfast import FlushPolicy
from support.models.kill_oracle import BrokenPromiseError, judge
from support.processes.children import Child
from support.workloads.kill_work import Journal, Role, drain, name_of, open_queue, work

ROUNDS = int(os.environ.get("HOLDFAST_TEST_KILL_ROUNDS", "20"))
WORK_SECONDS_MAX = 1.0
SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))
POLICIES = {
    "every_commit": FlushPolicy.every_commit(),
    "every_10": FlushPolicy.every(commits=10),
    "never": FlushPolicy.never(),
}


def kill_at_a_moment(process: Child, journal: Journal, choice: random.Random) -> None:
    """Let a process live until it has done a random amount of work, sometimes none at all, and a little longer."""
    work_bytes = 0 if choice.random() < 0.25 else int(2 ** choice.uniform(4, 13))
    pause = choice.uniform(0, 0.006)
    enough = journal.size() + work_bytes
    deadline = time.monotonic() + WORK_SECONDS_MAX
    while journal.size() < enough and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.0002)
    time.sleep(pause)
    process.kill()


def run_rounds(path: Path, roles: tuple[Role, ...], policy: FlushPolicy, seed: int) -> tuple[int, int, int]:
    """Kill processes of ``roles`` again and again, then judge; return counts of puts, deliveries and files made."""
    choice = random.Random(seed)
    puts, takes = Journal(path.with_suffix(".puts")), Journal(path.with_suffix(".takes"))
    open_queue(path, "exclusive", policy).close()
    for number in range(1, ROUNDS + 1):
        for journal in (puts, takes):
            journal.note("R", number)
        children = {}
        for role in roles:
            task = partial(work, path, role, policy, (puts, takes), choice.randrange(2**32), number)
            children[role] = Child(task)
        for role in choice.sample(roles, len(roles)):
            kill_at_a_moment(children[role], takes if role == "consumer" else puts, choice)
        statuses = [process.wait() for process in children.values()]
        if statuses != [-signal.SIGKILL] * len(roles):
            break  # the journal says what happened
        if choice.random() < 0.2:
            look_in_between(path, policy)
    takes.note("R", "end")
    with open_queue(path, "exclusive", policy) as queue:
        assert not queue.recovery.damage, queue.recovery
        file_count = int(max(os.listdir(path / "data")).split("-")[0])
        end = drain(queue, takes)
        assert queue.stats().depth == 0
        assert not queue.recovery.damage, queue.recovery
    log, model = judge(puts.lines(), takes.lines(), end)
    return len(log.acknowledged), model.delivered_count, file_count


def look_in_between(path: Path, policy: FlushPolicy) -> None:
    """Open the queue in order, look at all that is there, and close it again."""
    with open_queue(path, "exclusive", policy) as queue:
        assert not queue.recovery.damage, queue.recovery
        messages = queue.peek(10**6)
        assert len(messages) == queue.qsize()
        turns = [(message.delivery_count == 0, message.offset) for message in messages]
        assert turns == sorted(set(turns)), "what was handed out before comes first; each by offset"
        for message in messages:
            name_of(message.payload)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("roles", [("both",), ("producer", "consumer")], ids=["one process", "two processes"])
def test_what_was_acknowledged_survives_kill_9_at_any_moment(
    tmp_path: Path, roles: tuple[Role, ...], policy: str
) -> None:
    """Every acknowledged put is there once, batches are whole, order is kept, and nothing acknowledged comes again."""
    seed = SEED + 1000 * len(roles) + list(POLICIES).index(policy)
    try:
        put_count, delivered_count, file_count = run_rounds(tmp_path / "queue", roles, POLICIES[policy], seed)
    except BrokenPromiseError as violation:
        pytest.fail(f"HOLDFAST_TEST_SEED={SEED}, policy {policy}, {ROUNDS} rounds: {violation}", pytrace=False)
    assert put_count >= ROUNDS, "the processes were killed before they did anything"
    assert delivered_count >= ROUNDS
    assert file_count >= ROUNDS, "no file was rolled"
