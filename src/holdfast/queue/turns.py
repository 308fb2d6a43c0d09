"""One thread at a time decides a transaction; others go on with theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Who is deciding what just now, in one handle."""

    def __init__(self) -> None:
        self._holders: dict[str, object] = {}
        self._changed = threading.Condition()

    @contextmanager
    def alone(self, transaction_id: str) -> Iterator[None]:
        """Hold the turn of a transaction, once nobody else has it."""
        turn = object()
        try:
            with self._changed:
                self._changed.wait_for(lambda: transaction_id not in self._holders)
                self._holders[transaction_id] = turn
            yield
        finally:
            interruption: BaseException | None = None
            while True:  # left there, it would stop all others for ever
                try:
                    with self._changed:
                        if self._holders.get(transaction_id) is turn:
                            del self._holders[transaction_id]
                        self._changed.notify_all()
                    break
                except KeyboardInterrupt as error:
                    interruption = error
            if interruption is not None:
                raise interruption
