"""Nonces: random bytes of a thread, and its count."""

from __future__ import annotations

import gc
import secrets
import threading
from collections.abc import Iterator

import pytest

from holdfast.persistence.format.commit_record import count_of, thread_of
from holdfast.queue.producer import nonces
from holdfast.queue.producer.nonces import begin_anew, give_up, next_nonce
from support.processes.children import child


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Begin with no thread's bytes, and leave none."""
    begin_anew()
    yield
    begin_anew()


def in_thread() -> bytes:
    """Return a nonce that a thread of its own draws, which has ended."""
    drawn: list[bytes] = []
    thread = threading.Thread(target=lambda: drawn.append(next_nonce()))
    thread.start()
    thread.join()
    gc.collect()
    return drawn[0]


def test_nonces_of_a_thread_share_their_random_bytes_and_count_up() -> None:
    """In little endian, as all numbers of the format: no two are equal."""
    first, second = next_nonce(), next_nonce()
    assert thread_of(first) == thread_of(second)
    assert (count_of(first), count_of(second)) == (1, 2)
    assert second[8:] == b"\x02" + bytes(7)


def test_two_threads_have_other_random_bytes() -> None:
    """At the same time, that is."""
    assert thread_of(next_nonce()) != thread_of(in_thread())


def test_a_thread_continues_where_one_that_has_ended_stopped() -> None:
    """So an owner remembers as many threads as there were at once, however many come and go."""
    first, second = in_thread(), in_thread()
    assert thread_of(first) == thread_of(second)
    assert count_of(second) == 2


def test_a_thread_that_gives_up_its_request_continues_under_other_random_bytes() -> None:
    """Another thread does not get them either: the next request would say that the answer has arrived."""
    given_up = next_nonce()
    give_up()
    assert thread_of(next_nonce()) != thread_of(given_up)
    assert thread_of(in_thread()) != thread_of(given_up)


def test_there_is_nothing_to_give_up_before_the_first_request() -> None:
    """It does nothing then."""
    give_up()
    assert count_of(next_nonce()) == 1


def test_a_forked_child_has_other_random_bytes() -> None:
    """It is another process."""
    own = thread_of(next_nonce())

    def draw() -> None:
        assert thread_of(next_nonce()) != own

    with child(draw) as forked:
        assert forked.wait() == 0
    assert thread_of(next_nonce()) == own


def test_bytes_that_could_not_be_drawn_are_left_to_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt draws them."""
    with monkeypatch.context() as patched:
        patched.setattr(secrets, "token_bytes", None)
        with pytest.raises(TypeError):
            next_nonce()
    gc.collect()
    assert nonces._free == []
    assert len(next_nonce()) == 16
