"""The time that a handle has known a message: its age at least, even if the wall clock was set since then."""

from __future__ import annotations

import threading

from holdfast.clock import Clock

_LOOKS_MAX = 64
"""Beyond these some are forgotten: messages seem younger than is known, by a 32nd of the oldest one's age at most."""


class KnownSince:
    """Remembers when the log was seen to reach how far.

    Parameters
    ----------
    clock : Clock
        Whose monotonic seconds count.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._lock = threading.Lock()
        self._looks: list[tuple[int, float]] = []  # end of the log and when, both ascending

    def look(self, end: int, oldest: int | None) -> float:
        """Take note of the log's end; return for how many seconds message ``oldest`` has been known, at least.

        Messages older than ``oldest`` are not asked for any more; None: there is no message.
        """
        now, looks = self._monotonic(), self._looks
        with self._lock:
            while looks and (oldest is None or looks[0][0] <= oldest):
                del looks[0]
            if not looks or looks[-1][0] < end:
                looks.append((end, now))
            if len(looks) > _LOOKS_MAX:
                self._thin_out((now - looks[0][1]) / (_LOOKS_MAX / 2))
            return 0.0 if oldest is None else max(0.0, now - looks[0][1])

    def _thin_out(self, gap_seconds: float) -> None:
        kept = self._looks[:1]
        for look in self._looks[1:]:
            if look[1] - kept[-1][1] >= gap_seconds:
                kept.append(look)
        self._looks = kept
