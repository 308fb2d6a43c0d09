"""What a life puts: plain messages, and those that ask for something."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast import Put
from proof.crash_states.asked import PLAIN, Asked
from proof.crash_states.history import Part
from proof.crash_states.lives.books import LOG, SMALL_BYTES, A, Books
from support.workloads.recorded_run import message

HALF_AN_HOUR_NS = 1800 * 10**9
HOUR_SECONDS = 3600
ORDER_KEY = "key"
PRIORITY = 9


class Putting(Books):
    """Puts."""

    def put(self, *sizes: int) -> None:
        """Put one message, or several as a batch."""
        payloads = self._payloads(A, sizes)
        before = self._last_data_file(A)
        first = self.queue.put(payloads[0]) if len(payloads) == 1 else self.queue.put_many(payloads).start
        self._put(first, payloads, before)
        self._return(f"put{sizes}")

    def _put(self, first: int, payloads: Sequence[bytes], before: str, asked: Asked = PLAIN) -> None:
        assert first == len(self.history.payloads[A]), f"offset {first} given twice, or one passed over"
        self._appended(A, payloads, before, asked)
        self._committed(LOG)

    def put_asking(self, name: str, asked: Asked, count: int = 1) -> None:
        """Put messages that ask for something."""
        payloads = self._payloads(A, [SMALL_BYTES] * count)
        before = self._last_data_file(A)
        first = self.queue.put_many([self.wish(payload, asked) for payload in payloads]).start
        self._put(first, payloads, before, asked)
        self._return(f"put_{name}")

    @property
    def keyed(self) -> Asked:
        """What a message of the one order key asks for."""
        return Asked(order_key=ORDER_KEY)

    def put_urgent(self) -> None:
        """Put a message that comes before all others."""
        self.put_asking("urgent", Asked(priority=PRIORITY))

    def put_keyed(self) -> None:
        """Put two messages of one order key, always the same."""
        self.put_asking("keyed", self.keyed, count=2)

    def put_delayed(self) -> None:
        """Put a message for later."""
        self.put_asking("delayed", Asked(until_ns=self.now_ns + HALF_AN_HOUR_NS))

    def put_mortal(self) -> None:
        """Put a message that nobody is given later."""
        self.put_asking("mortal", Asked(expires_ns=self.now_ns + HALF_AN_HOUR_NS))

    def put_once(self, dedup_id: str) -> None:
        """Put a message with a deduplication id, which is the only one that is ever put with it."""
        (payload,) = self._payloads(A, [SMALL_BYTES])
        before = self._last_data_file(A)
        ids = self.history.ids[A]
        offset = self.queue.put(payload, dedup_id=dedup_id)
        if dedup_id in ids:
            assert offset == ids[dedup_id], f"{dedup_id} was put as {ids[dedup_id]}, and again as {offset}"
        else:
            ids[dedup_id] = offset
            self._put(offset, [payload], before)
        self._return("put_once")

    def hour(self) -> None:
        """Let more time pass than anything asks for."""
        self.let_pass(HOUR_SECONDS)

    # -- What is in a log --------------------------------------------------------------------------------------------

    @staticmethod
    def wish(payload: bytes, asked: Asked) -> bytes | Put:
        """Return what to put."""
        if asked == PLAIN:
            return payload
        return Put(
            payload,
            priority=asked.priority,
            order_key=asked.order_key or None,
            not_before=datetime.fromtimestamp(asked.until_ns // 10**9, UTC) if asked.until_ns else None,
            ttl=HALF_AN_HOUR_NS // 10**9 if asked.expires_ns else None,
        )

    def _payloads(self, name: str, sizes: Sequence[int]) -> list[bytes]:
        first = sum(map(len, self.history.payloads.values())) + (len(self.tx.puts) if self.tx is not None else 0)
        first += sum(len(each.puts) for each in self.held.values())
        return [name.encode() + message(first + number, size - 1) if size else b"" for number, size in enumerate(sizes)]

    def _appended(self, name: str, payloads: Sequence[bytes], data_file_before: str, asked: Asked = PLAIN) -> None:
        """Note what is in a log now; where that began a data file, the one before was sealed and synced."""
        if self._last_data_file(name) != data_file_before:
            self.history.is_durable((name, Part.LOG))
        self._in_log(name, payloads, asked)
        self._happened({(name, Part.LOG): len(self.history.payloads[name])})

    def _in_log(self, name: str, payloads: Sequence[bytes], asked: Asked = PLAIN) -> None:
        first = len(self.history.payloads[name])
        self.history.payloads[name] += payloads
        if asked != PLAIN:
            self.history.wishes[name].update((first + number, asked) for number in range(len(payloads)))

    def _last_data_file(self, name: str) -> str:
        return max(self.storage.list(self.queues[name].path / "data"), default="")
