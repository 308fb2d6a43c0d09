"""A short run of ``python -m proof.owner_deaths``, and answers that its books must not accept."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import count

import pytest

from holdfast.queue.protocol.messages import Commit, Done, Offsets, Put, Settle, Take, Taken, Verb
from proof.owner_deaths.books import Asked, Books, BrokenPromiseError
from proof.owner_deaths.held import Held
from proof.owner_deaths.history import judged_history

SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))
NONCE, OTHER = b"1" * 16, b"2" * 16
A, B = b"a", b"b"
GROUP = "default"


@pytest.mark.parametrize("seed", [SEED, SEED + 1, SEED + 3, SEED + 10, SEED + 17])
def test_an_owner_may_die_behind_any_storage_operation(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Its clients ask the next one again: what they put is there once, and what they finished never comes again."""
    caplog.set_level(logging.CRITICAL, "holdfast")  # recoveries have much to say here
    tally, broken = judged_history(seed, 3)
    assert not broken
    assert tally.kills > 20


# -- The books -------------------------------------------------------------------------------------------------------


def put(*payloads: bytes) -> Asked:
    """Return a put."""
    return Asked(Put(NONCE, False, "", {}, 0), list(payloads))


def settled(verb: str, *offsets: int, number: int = 1) -> Asked:
    """Return a verb on what a take of this number has in hand."""
    return Asked(Settle(GROUP, verb, [(number, offset) for offset in offsets]), offsets=list(offsets))


def committed(payload: bytes, *offsets: int) -> Asked:
    """Return a commit that puts a message, and finishes others."""
    receipts = [(1, offset) for offset in offsets]
    return Asked(Commit(OTHER, "a transaction", {}, 0, GROUP, receipts), [payload], list(offsets))


def held(*payloads: bytes, offsets: tuple[int, ...] = (), is_to_commit: bool = True) -> Held:
    """Return a transaction that puts messages, and finishes what the first take has in hand."""
    names = (Held(f"t{number}", NONCE, GROUP, list(offsets), list(payloads)) for number in count())
    return next(each for each in names if each.is_to_commit is is_to_commit)


def asked_of(held: Held, step: str) -> Asked:
    """Return the request that prepares or decides a transaction."""
    if step == "decide":
        return Asked(held.deciding(), held=held, step=step)
    receipts = [(1, offset) for offset in held.offsets]
    return Asked(
        held.preparing(receipts, is_staged=bool(held.payloads)), held.payloads, held.offsets, held=held, step=step
    )


def prepared(books: Books, held: Held) -> Books:
    """Return the books behind the answer that a transaction is prepared."""
    books.answered(asked_of(held, "prepare"), Done({}), (), [])
    return books


def reserved(books: Books, *offsets: int) -> None:
    """Note the answer to a reservation."""
    asked = Asked(Verb(GROUP, {}), held=Held("r", OTHER, GROUP, is_reserved=True), step="reserve")
    books.answered(asked, Done({"id": "r-1", "runs": [(offset, 1, 1, 0) for offset in offsets]}), (), [])


def taken(books: Books, number: int, *messages: tuple[int, bytes]) -> None:
    """Note the answer to a take."""
    reply = Taken([(offset, 0, b"", 1) for offset, _ in messages], 30, 0)
    asked = Asked(Take(GROUP, number, len(messages), None, 0))
    books.answered(asked, reply, [payload for _, payload in messages], [])


@pytest.fixture
def books() -> Books:
    """Return the books of a queue with a and b, both of them in hand of the first take."""
    books = Books()
    books.answered(put(A, B), Offsets(0, 2), (), [])
    taken(books, 1, (0, A), (1, B))
    return books


def test_what_was_not_finished_is_left(books: Books) -> None:
    """And what was finished, is not."""
    books.answered(settled("ack", 0), Done({}), (), [])
    books.judge(GROUP, {1: B})


def test_what_was_given_back_may_be_taken_before_that_is_answered(books: Books) -> None:
    """The owner that gave it back may have died, and its successor answers the take first."""
    release = settled("release", 0)
    reply = Taken([(0, 0, b"", 2)], 30, 0)
    books.answered(Asked(Take(GROUP, 2, 1, None, 0)), reply, [A], [release])
    books.answered(release, Done({}), (), [])
    assert books.in_hand[GROUP][0] == 2


@pytest.mark.parametrize("left", [{0: A, 1: B}, {1: B}], ids=["not done", "done"])
def test_a_request_without_an_answer_was_done_or_not(books: Books, left: dict[int, bytes]) -> None:
    """Both are right if its client died."""
    books.died(0, settled("ack", 0))
    books.judge(GROUP, left)


def test_what_a_dead_client_may_have_aborted_may_be_taken(books: Books) -> None:
    """Its request to decide has no answer, and was done."""
    one = held(b"c", offsets=(0,), is_to_commit=False)
    prepared(books, one).died(7, asked_of(one, "decide"))
    taken(books, 2, (0, A))
    assert books.judge_doubts({}, []) == []
    books.judge(GROUP, {0: A, 1: B})


def test_what_a_dead_client_has_not_committed_may_be_finished_by_another(books: Books) -> None:
    """Then it does not tell whether the commit was done."""
    books.died(0, committed(b"c", 0))
    taken(books, 2, (0, A))
    books.answered(settled("ack", 0, number=2), Done({}), (), [])
    books.judge(GROUP, {1: B})


@pytest.mark.parametrize("is_to_commit", [True, False], ids=["committed", "aborted"])
def test_what_is_prepared_is_in_doubt_until_it_is_decided(books: Books, is_to_commit: bool) -> None:
    """By anyone, once all clients are dead; then it is there, or what it holds is."""
    one = held(b"c", offsets=(0,), is_to_commit=is_to_commit)
    prepared(books, one).died(0, None)
    (found,) = books.judge_doubts({one.id: (GROUP, [0])}, [])
    books.decided(found, {"first": 2, "count": 1})
    books.judge(GROUP, {1: B, 2: b"c"} if is_to_commit else {0: A, 1: B})


def test_a_decision_without_an_answer_was_made_or_not(books: Books) -> None:
    """If nothing is in doubt, it was."""
    one = held(b"c", offsets=(0,))
    prepared(books, one).died(0, asked_of(one, "decide"))
    assert books.judge_doubts({}, []) == []
    books.judge(GROUP, {1: B, 2: b"c"})


def changed(books: Books, value: float, *, is_answered: bool) -> Books:
    """Return the books behind a change of a setting of the group."""
    asked = Asked(Verb(GROUP, {}), settings={"dead_letter_seconds": value}, step="configure")
    if is_answered:
        books.answered(asked, Done({}), (), [])
    else:
        books.died(0, asked)
    return books


@pytest.mark.parametrize("value", [60.0, 70.0])
def test_a_change_of_settings_without_an_answer_was_made_or_not(books: Books, value: float) -> None:
    """What was answered is stored, unless the other one came behind it."""
    changed(changed(books, 60, is_answered=True), 70, is_answered=False)
    books.judge_settings({(GROUP, "dead_letter_seconds"): value, ("", "dedup_window"): 300.0})


BROKEN: dict[str, tuple[str, Callable[[Books], object]]] = {
    "a change that was lost": (
        "not one of",
        lambda books: changed(books, 60, is_answered=True).judge_settings(
            {(GROUP, "dead_letter_seconds"): 1_209_600.0}
        ),
    ),
    "a change that no one asked for": ("not one of", lambda books: books.judge_settings({("", "dedup_window"): 1.0})),
    "a lost message": ("is lost", lambda books: books.judge(GROUP, {1: B})),
    "another offset for a put": ("has offset", lambda books: books.answered(put(A), Offsets(5, 1), (), [])),
    "an offset given twice": ("given twice", lambda books: books.answered(put(b"c"), Offsets(1, 1), (), [])),
    "refused, and there": (
        "was refused",
        lambda books: (books.found_full(put(b"c")), books.judge(GROUP, {0: A, 1: B, 2: b"c"})),
    ),
    "refused, and there before": ("already", lambda books: books.found_full(put(A))),
    "half of a batch put": ("were put", lambda books: books.answered(put(b"c", b"d"), Offsets(2, 1), (), [])),
    "two hands": ("two hands", lambda books: taken(books, 2, (0, A))),
    "finished, and taken again": (
        "comes again",
        lambda books: (books.answered(settled("ack", 0), Done({}), (), []), taken(books, 2, (0, A))),
    ),
    "finished, and left": (
        "comes again",
        lambda books: (books.answered(settled("reject", 0), Done({}), (), []), books.judge(GROUP, {0: A, 1: B})),
    ),
    "never put": ("never put", lambda books: books.judge(GROUP, {0: A, 1: B, 2: b"c"})),
    "prepared, and in doubt nowhere": (
        "in doubt nowhere",
        lambda books: prepared(books, held(b"c", offsets=(0,))).judge_doubts({}, []),
    ),
    "in doubt, and prepared by no one": ("not known", lambda books: books.judge_doubts({"t": (GROUP, [0])}, [])),
    "in doubt, and others are held": (
        "not \\[0\\]",
        lambda books: prepared(books, held(offsets=(0,))).judge_doubts({held(offsets=(0,)).id: (GROUP, [1])}, []),
    ),
    "held in doubt, and taken": (
        "held in doubt",
        lambda books: taken(prepared(books, held(b"c", offsets=(0,))), 2, (0, A)),
    ),
    "prepared, and in another hand": (
        "others have",
        lambda books: prepared(books, held(b"c", offsets=(5,))),
    ),
    "reserved, and in another hand": ("in another hand", lambda books: reserved(books, 0)),
    "reserved, and finished": (
        "were finished",
        lambda books: (books.answered(settled("ack", 0), Done({}), (), []), reserved(books, 0)),
    ),
    "aborted, and there": (
        "was refused",
        lambda books: (
            books.decided(held(b"c", is_to_commit=False), {}),
            books.judge(GROUP, {0: A, 1: B, 2: b"c"}),
        ),
    ),
    "committed, and not there": (
        "not there",
        lambda books: (
            prepared(books, held(b"c")).died(0, asked_of(held(b"c"), "decide")),
            books.judge_doubts({}, []),
            books.judge(GROUP, {0: A, 1: B}),
        ),
    ),
    "half of a batch left": (
        "half of a batch",
        lambda books: books.judge(GROUP, {0: A, 1: B, 2: b"c"}, [put(b"c", b"d")]),
    ),
    "half of what a commit finishes": (
        "half of what",
        lambda books: books.judge(GROUP, {0: A, 2: b"c"}, [committed(b"c", 0, 1)]),
    ),
    "a commit that put, and finished nothing": (
        "the other way round",
        lambda books: books.judge(GROUP, {0: A, 1: B, 2: b"c"}, [committed(b"c", 0, 1)]),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_books_do_not_accept(books: Books, name: str) -> None:
    """Each broken promise is named."""
    text, do = BROKEN[name]
    with pytest.raises(BrokenPromiseError, match=text):
        do(books)
