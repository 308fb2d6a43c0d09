"""Eight threads prepare, commit and abort, and their process is killed: what they were told holds, and nothing else."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from holdfast import PersistentQueue, TransactionNotFoundError, TransactionStateError, verify
from support.processes.children import child

THREADS = 8
ROUNDS = 30 if os.environ.get("HOLDFAST_TEST_CRASH_FULL") else 3
FILE_BYTES = 64 * 2**10
"""A segment is so small that many are begun and removed."""

KEEPS_EVERY = 7
"""One in so many stays undecided, so that it moves."""


def work(path: Path, told: int, first: int) -> None:
    """Prepare and decide, and write a line before and behind each call."""

    def say(*words: object) -> None:
        os.write(told, (" ".join(map(str, words)) + "\n").encode())

    def run(thread: int) -> None:
        for number in itertools.count(first):
            name = f"t{thread}-{number}"
            tx = queue.begin()
            tx.put_many([f"{name}/{each}".encode() + bytes(300) for each in range(1 + number % 3)])
            say("prepare", name)
            tx.prepare(name)
            say("prepared", name)
            if number % KEEPS_EVERY == 0:
                continue
            verb = "abort" if number % 3 == 0 else "commit"
            say(verb, name)
            if number % 2:
                getattr(tx, verb)()
            else:
                getattr(queue, f"{verb}_prepared")(name)
            say(f"{verb}ed", name)

    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        threads = [threading.Thread(target=run, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def last_words(path: Path) -> dict[str, str]:
    """Return the last line of each transaction."""
    lines = path.read_text(encoding="ascii").splitlines()
    return {name: verb for verb, _, name in (line.partition(" ") for line in lines)}


def judge(queue: PersistentQueue, words: dict[str, str]) -> None:
    """Compare what the queue holds with what its callers were told."""
    in_doubt = {each.id: each for each in queue.prepared()}
    assert not any(each.damage for each in in_doubt.values())
    found: dict[str, list[int]] = {}
    for message in queue.peek(10**6):
        name, _, number = message.payload.rstrip(b"\0").decode().partition("/")
        found.setdefault(name, []).append(int(number))
    allowed = {
        "prepare": {"nothing", "in doubt"},
        "prepared": {"in doubt"},
        "commit": {"in doubt", "committed"},
        "commited": {"committed"},
        "abort": {"in doubt", "nothing"},
        "aborted": {"nothing"},
    }
    for name, word in words.items():
        assert not (name in found and name in in_doubt), f"{name} is committed, and in doubt"
        is_now = "committed" if name in found else "in doubt" if name in in_doubt else "nothing"
        assert is_now in allowed[word], f"{name}: {word}, and {is_now} now"
        if name in found:
            assert found[name] == list(range(1 + int(name.partition("-")[2]) % 3)), f"{name} has {found[name]}"
    assert found.keys() | in_doubt.keys() <= words.keys()


@pytest.mark.timeout(600)
def test_what_was_prepared_and_decided_survives_the_kill_of_its_process(tmp_path: Path) -> None:
    """Again and again, with what earlier processes have left; and all that is left can be decided."""
    path, notes = tmp_path / "queue", tmp_path / "notes"
    for round_number in range(ROUNDS):
        told = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        first = round_number * 10**6
        with child(lambda told=told, first=first: work(path, told, first)) as process:  # type: ignore[misc]
            deadline = time.monotonic() + 30
            while (not notes.exists() or notes.stat().st_size < 6000 * (round_number + 1)) and process.is_alive():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert process.is_alive()
            process.kill()
            process.wait()
        os.close(told)
        assert verify(path).ok
        with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
            words = last_words(notes)
            judge(queue, words)
            for each in queue.prepared():
                if each.id.endswith("0"):
                    queue.commit_prepared(each.id)
                    words[each.id] = "commited"
            judge(queue, words)
            for name, word in words.items():
                if word == "aborted" and name.startswith(f"t0-{first}"):
                    with pytest.raises((TransactionStateError, TransactionNotFoundError)):
                        queue.commit_prepared(name)
        with notes.open("a", encoding="ascii") as file:
            file.writelines(f"{word} {name}\n" for name, word in words.items())
