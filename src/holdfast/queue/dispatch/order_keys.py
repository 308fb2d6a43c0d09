"""Order keys: messages of one key are handed out in order, one at a time. Pure."""

from __future__ import annotations

from collections import deque

from holdfast.queue.dispatch.references import offset_of


class OrderKeys:
    """The message that has the turn of each used key, and those that wait for it, as packed references.

    A message has its key's turn from when it is found until it is finished or a dead letter: also while it is delayed,
    or waits after a failure. So it holds back the others of its key only.

    Attributes
    ----------
    active : dict of str to tuple
        By key: the offset of the message that has its turn, and those that wait for it. Empty if no message has a key,
        which is checked at the end of every message.
    waiting_count : int
        Messages that wait for their turn.
    """

    def __init__(self) -> None:
        self.active: dict[str, tuple[int, deque[int]]] = {}
        self.waiting_count = 0

    def enter(self, key: str, offset: int, packed: int) -> bool:
        """Give a message the turn, or have it wait; return whether it has the turn."""
        turn = self.active.get(key)
        if turn is None:
            self.active[key] = (offset, deque())
            return True
        if turn[0] == offset:
            return True
        turn[1].append(packed)
        self.waiting_count += 1
        return False

    def leave(self, key: str, offset: int) -> int | None:
        """End a message's turn; return the message that waited longest and has the turn now, if any."""
        turn = self.active.get(key)
        if turn is None or turn[0] != offset:
            return None
        waiting = turn[1]
        if not waiting:
            del self.active[key]
            return None
        packed = waiting.popleft()
        self.waiting_count -= 1
        self.active[key] = (offset_of(packed), waiting)
        return packed

    def key_of(self, offset: int) -> str | None:
        """Return the key whose turn a message has; visits all of them."""
        return next((key for key, turn in self.active.items() if turn[0] == offset), None)

    def clear(self) -> None:
        """Forget them all."""
        self.active.clear()
        self.waiting_count = 0
