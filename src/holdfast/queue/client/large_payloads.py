"""Payloads that are too large for the reply to a take: the client reads them from the log itself.

A message in hand is not finished, so no owner retires its data file. That its lease has ended meanwhile is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from holdfast.errors import CorruptionError, LeaseExpiredError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.report import Damage
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import LogReader
from holdfast.queue.protocol.messages import Place, Taken


class LargePayloads:
    """Reads messages of one queue by their places. Threads may share it.

    Parameters
    ----------
    files : LogFiles
        The data files.
    """

    def __init__(self, files: LogFiles) -> None:
        self._files = files

    def fill_in(self, reply: Taken, payloads: Sequence[bytes]) -> list[bytes]:
        """Return the payloads of a reply to a take, the large ones too. Raises as :meth:`read`."""
        filled = list(payloads)
        for which, place in reply.places.items():
            filled[which] = self.read(reply.messages[which][0], place)
        return filled

    def read(self, offset: int, place: Place) -> bytes:
        """Return the payload of a message in hand; its checksum is verified.

        Raises
        ------
        LeaseExpiredError
            The data file is gone: the message was taken away, and is finished by another process.
        CorruptionError, StorageError
            It is damaged, or the disk refuses.
        """
        sequence, position, end = place
        losses: list[Damage] = []
        with (
            storage_errors("reading a message", self._files.directory),
            closing(LogReader(self._files, losses.append, recheck=True)) as reader,
        ):
            reader.seek(offset, (sequence, position))
            records = reader.read(1, (sequence, end, offset + 1))
        if records and records[0][0] == offset:
            return records[0][3]
        if losses:
            raise CorruptionError(
                f"message {offset} is damaged ({losses[0].reason})",
                path=str(losses[0].path),
                position=losses[0].position,
            )
        raise LeaseExpiredError(
            f"message {offset} was given back before it could be read; use a longer lease_seconds", offset=offset
        )
