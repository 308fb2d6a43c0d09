"""``queue.reservations``: many messages held under one id, over restarts, until they are committed or given back.

A reservation is a prepared transaction that acknowledges and puts nothing. docs/adr/0038.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

from holdfast.errors import ConfigError
from holdfast.messages import Message
from holdfast.persistence.filesystem.layout import DataFileName, check_name, open_if_there
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.commit_record import Run
from holdfast.persistence.format.message_headers import decode_headers
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import Vote
from holdfast.persistence.log.log_reader import Record
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.run_reader import RunReader
from holdfast.queue.engine.queue_handle import QueueHandle

NO_LIMIT = 2**63 - 1

_READ_COUNT = 1024


@dataclass(frozen=True, slots=True)
class Reservation:
    """Messages that are held together.

    Attributes
    ----------
    id : str
        Made of the queue, the group, and the first message: unique in this queue, unless the messages were given back.
    nonce : bytes
        Of the transaction.
    runs : tuple of Run
        The messages, ascending: first offset, count, data file, and the position behind the last of them.
    size_bytes : int or None
        Of their payloads; None if it was taken in an earlier life: :meth:`Reservations.size_bytes` counts them.
    """

    id: str
    nonce: bytes
    runs: tuple[Run, ...]
    size_bytes: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, vote: Vote, size_bytes: int | None = None) -> Reservation:
        """Return the reservation that a vote makes."""
        return cls(vote.id, vote.nonce, vote.runs, size_bytes)

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return sum(run[1] for run in self.runs)


class Reserving(Protocol):
    """Takes and decides the reservations of one group: in this process, or through the owner of a shared queue."""

    def reserve(self, prefix: str, count_max: int, bytes_max: int, end_offset: int) -> Reservation | None:
        """Hold the next messages; None if nothing can be taken now. Raises as :meth:`Reservations.take`."""

    def commit(self, reservation: Reservation) -> None:
        """Finish the messages, durably. Raises as :meth:`Reservations.commit`."""

    def abort(self, reservation: Reservation) -> None:
        """Give the messages back, durably. Raises as :meth:`Reservations.commit`."""


class Reservations:
    """Takes, finds, reads and decides the reservations of the group that this handle takes for.

    They are among ``prepared()`` as well, and ``commit_prepared`` and ``abort_prepared`` decide them too.
    """

    def __init__(self, handle: QueueHandle, reserving: Reserving, *, check_open: Callable[[], None]) -> None:
        self._handle = handle
        self._reserving = reserving
        self._check_open = check_open

    # -- Taking ------------------------------------------------------------------------------------------------------

    def take(
        self,
        *,
        prefix: str = "reserved",
        max_messages: int | None = None,
        max_bytes: int | None = None,
        end_offset: int | None = None,
    ) -> Reservation | None:
        """Hold the next messages under an id; return None if nothing can be taken now.

        Parameters
        ----------
        prefix : str
            The beginning of the id.
        max_messages : int or None
            At most so many.
        max_bytes : int or None, bytes
            At most so many bytes of payloads; a larger message comes alone.
        end_offset : int or None
            Nothing from this offset on.

        Raises
        ------
        queue.ShutDown, ClosedError
            The queue was shut down and nothing is left to wait for, or was closed.
        ConfigError
            No name of a transaction can begin with this prefix.
        DiskFullError, StorageError
            It could not be noted; nothing is held.
        CommitUnknownError, PoisonedError
            It may have happened or not, or an earlier failure has poisoned this side: reopen the queue and see
            :meth:`held`.
        RetryableError
            Of the mode "shared": no owner answers. It may have happened or not, as :meth:`held` shows.

        Notes
        -----
        It takes the messages that ``receive_many`` would deliver: those with a priority, those whose time
        has come and those that were given back, then the others in order. Waiting messages stay. Messages of one order
        key may be together in it. It ends early after 4,096 separate runs of offsets. In the mode "shared" it also ends
        after 200,000 messages or 512 MiB: other takers wait meanwhile. It is not counted as a delivery.

        Durability: power loss, under any flush policy. Cost: one sync, and reading the header of each message.
        """
        self._check_open()
        self._handle.require_taking()
        end = NO_LIMIT if end_offset is None else end_offset
        return self._reserving.reserve(prefix, max_messages or NO_LIMIT, max_bytes or NO_LIMIT, end)

    def held(self, prefix: str = "reserved") -> list[Reservation]:
        """Return the reservations with this prefix that wait for a decision, oldest first."""
        votes = [each for each in list(self._progress().votes.values()) if each.coordinator is None and each.runs]
        if not votes:  # as those of an unused group, which has no id yet
            return []
        begins = self.id_prefix(prefix)
        return [Reservation.of(vote) for vote in votes if vote.id.startswith(begins)]

    def id_prefix(self, prefix: str) -> str:
        """Return the prefixes, beginning with this one, of all reservations of this group, which has begun."""
        return id_prefix(self._handle, prefix)

    # -- Deciding ----------------------------------------------------------------------------------------------------

    def commit(self, reservation: Reservation) -> None:
        """Finish the messages, with one sync; in the mode "shared" with two.

        Raises
        ------
        TransactionStateError, TransactionNotFoundError
            They were given back meanwhile, or so long ago that it is forgotten.
        CommitUnknownError, PoisonedError
            It may have happened or not, or an earlier failure has poisoned this side: reopen the queue and see
            :meth:`held`.
        RetryableError
            Of the mode "shared": no owner answers. Commit it again.
        """
        self._check_open()
        self._reserving.commit(reservation)

    def abort(self, reservation: Reservation) -> None:
        """Give the messages back, as if they had never been taken. Raises as :meth:`commit`."""
        self._check_open()
        self._reserving.abort(reservation)

    # -- Reading -----------------------------------------------------------------------------------------------------

    def read(self, reservation: Reservation, on_loss: Callable[[Damage], None]) -> Iterator[Message]:
        """Yield the messages in offset order; damaged ones are skipped and reported to ``on_loss``."""
        counts = self.delivery_counts(reservation)
        for record in self._records(reservation, on_loss):
            yield Message(record[3], record[0], record[1], decode_headers(record[2]), counts.get(record[0], 0))

    def delivery_counts(self, reservation: Reservation) -> dict[int, int]:
        """Return the delivery counts of those messages that were delivered before."""
        deliveries = dict(self._progress().deliveries)  # a copy: other threads deliver meanwhile
        known, counts = sorted(deliveries), {}
        for first, count, _, _ in reservation.runs:
            for offset in known[bisect_left(known, first) : bisect_left(known, first + count)]:
                counts[offset] = deliveries[offset]
        return counts

    def size_bytes(self, reservation: Reservation) -> int:
        """Return the bytes of all payloads, as far as they can be read; nearly always reads frame headers only."""
        if reservation.size_bytes is not None:
            return reservation.size_bytes
        size = 0
        with self._reader(lambda _: None) as reader, storage_errors("reading a reservation", self._handle.path):
            for first, count, *end_of_run in reservation.runs:
                end = _log_end(first, count, *end_of_run)
                reader.go_on_to(first)
                while (left := first + count - reader.next_offset) > 0:
                    before = first - reader.next_offset  # it may be a little before the first one
                    run = reader.pass_plain(before if before > 0 else left, NO_LIMIT, end)
                    if run is not None:
                        size += run.size_bytes if before <= 0 else 0
                        continue
                    records = reader.read(min(left, _READ_COUNT), end)
                    if not records:
                        break
                    size += sum(len(record[3]) for record in records if first <= record[0] < first + count)
        return size

    def data_files(self, reservation: Reservation) -> dict[int, DataFileName]:
        """Return its data files that are there, by sequence. The others of the queue are listed only if one is missing.

        A merged file is that of all sequences that it has replaced.
        """
        self._check_open()
        files, sequences = self._handle.files, {run[2] for run in reservation.runs}
        with storage_errors("looking for data files", files.directory):
            names = self._there(sequences)
            if names.keys() != sequences:  # a merge may have replaced them since this handle has listed
                files.refresh()
                names |= self._there(sequences - names.keys())
        return names

    def _there(self, sequences: Iterable[int]) -> dict[int, DataFileName]:
        """Return those data files that can be opened, by sequence, as this handle knows them."""
        files, names = self._handle.files, {}
        for sequence in sequences:
            name = files.named(sequence) or files.replacing(sequence)
            file = None if name is None else open_if_there(files.storage, files.path(name))
            if name is not None and file is not None:
                file.close()
                names[sequence] = name
        return names

    def _records(self, reservation: Reservation, on_loss: Callable[[Damage], None]) -> Iterator[Record]:
        losses: list[Damage] = []
        with self._reader(losses.append) as reader:
            for first, count, *end_of_run in reservation.runs:
                end = _log_end(first, count, *end_of_run)
                with storage_errors("reading a reservation", self._handle.path):
                    reader.go_on_to(first)
                while (left := first + count - reader.next_offset) > 0:
                    with storage_errors("reading a reservation", self._handle.path):
                        records = reader.read(min(left, _READ_COUNT), end)
                    for each in losses:
                        lost = range(max(first, each.offsets.start), min(first + count, each.offsets.stop))
                        if lost:  # messages of others are not lost to this one
                            on_loss(replace(each, offsets=lost))
                    losses.clear()
                    if not records:
                        break
                    yield from (record for record in records if first <= record[0] < first + count)

    def _reader(self, on_loss: Callable[[Damage], None]) -> closing[RunReader]:
        return closing(RunReader(self._handle.files, on_loss))

    def _progress(self) -> GroupProgress:
        """Return the progress of the group; raises UsageError if the mode does not take."""
        self._check_open()
        if self._handle.consumer is not None and self._handle.look_side is not None:  # as far as the owner has written
            return self._handle.look_side.progress
        return self._handle.require_read_side().progress


def id_prefix(handle: QueueHandle, prefix: str) -> str:
    """As :meth:`Reservations.id_prefix`, for the group of a handle."""
    return f"{prefix}-{handle.queue_id.hex()}-{handle.group.require().group_id.hex()[:16]}-"


def check_transaction_id(transaction_id: str, queue_id: bytes) -> str:
    """Return the id that a caller has chosen for a transaction; raises ConfigError if it cannot be one.

    No id of a reservation is given by hand. So a reservation need not look for its id among the votes of all groups.
    """
    if re.search(rf"-{queue_id.hex()}-[0-9a-f]{{16}}-[0-9]+\Z", check_name(transaction_id, "transaction")):
        raise ConfigError(f"{transaction_id!r} is the id of a reservation: choose another one for the transaction")
    return transaction_id


def _log_end(first: int, count: int, sequence: int, end_position: int) -> LogEnd:
    """Return the end of a run as that of a log: a client may not see the log's own end yet."""
    return sequence, end_position, first + count
