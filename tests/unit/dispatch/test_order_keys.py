"""Whose turn it is: the pure part of order keys."""

import random

from holdfast.persistence.format.constants import FRAME_HEADER_BYTES
from holdfast.queue.dispatch.order_keys import OrderKeys
from holdfast.queue.dispatch.references import reference_to, unpack


def packed(offset: int) -> int:
    """Return a reference to a message."""
    return reference_to((offset, 0, b"", b"", 512 + FRAME_HEADER_BYTES, 1))


def next_of(keys: OrderKeys, key: str, offset: int) -> int | None:
    """End a turn; return the offset of who has it then."""
    following = keys.leave(key, offset)
    return None if following is None else unpack(following).offset


def test_the_first_one_has_the_turn_and_the_others_wait_in_order() -> None:
    """When the last one leaves nothing is left of the key."""
    keys = OrderKeys()
    assert [keys.enter("a", offset, packed(offset)) for offset in (3, 5, 8)] == [True, False, False]
    assert (len(keys.active), keys.waiting_count) == (1, 2)
    assert [next_of(keys, "a", offset) for offset in (3, 5, 8)] == [5, 8, None]
    assert (len(keys.active), keys.waiting_count) == (0, 0)


def test_who_has_the_turn_may_enter_again() -> None:
    """It is found anew after a failure, and waits behind nobody, itself least of all."""
    keys = OrderKeys()
    assert keys.enter("a", 3, packed(3))
    assert not keys.enter("a", 5, packed(5))
    assert keys.enter("a", 3, packed(3))
    assert keys.waiting_count == 1


def test_only_who_has_the_turn_can_leave() -> None:
    """One that waits, one of another key, and one that has left change nothing."""
    keys = OrderKeys()
    keys.enter("a", 3, packed(3))
    keys.enter("a", 5, packed(5))
    assert [next_of(keys, key, offset) for key, offset in (("a", 5), ("b", 3), ("a", 99))] == [None, None, None]
    assert keys.waiting_count == 1
    assert next_of(keys, "a", 3) == 5
    assert next_of(keys, "a", 3) is None
    assert keys.key_of(5) == "a"
    assert keys.key_of(3) is None


def test_keys_know_nothing_of_each_other() -> None:
    """Each is a line of its own, in any mixture."""
    choice, keys = random.Random(1), OrderKeys()
    lines: dict[str, list[int]] = {}
    for offset in range(300):
        key = choice.choice("abcde")
        line = lines.setdefault(key, [])
        assert keys.enter(key, offset, packed(offset)) == (not line)
        line.append(offset)
        if choice.random() < 0.4:
            key = choice.choice(list(lines))
            first = lines[key].pop(0)
            assert next_of(keys, key, first) == (lines[key][0] if lines[key] else None)
            if not lines[key]:
                del lines[key]
    assert keys.waiting_count == sum(len(line) - 1 for line in lines.values())
    keys.clear()
    assert (len(keys.active), keys.waiting_count) == (0, 0)
