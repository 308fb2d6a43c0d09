"""Appends with space that was reserved for them, on a full disk: no other append gets it. Under the append lock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from holdfast.errors import DiskFullError, HoldfastError
from holdfast.persistence.log.log_writer import LogWriter
from holdfast.persistence.prepared_log.reserve import Reserve


class ReservedAppends:
    """The commits of one log that have a reserve.

    Parameters
    ----------
    writer : LogWriter
        The writer of the log.
    """

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._reserve: Reserve | None = None

    def append(self, append: Callable[[], range], reserve: Reserve) -> range:
        """Append, and give the reserve back if the disk is full. Raises as ``append``, or as ``Reserve.give_back``.

        What is left of the data file is for others of these, until :meth:`leave`.
        """
        writer, self._reserve = self._writer, reserve
        sequence, is_kept, is_used = writer.end[0], writer.keeps_room, False
        try:
            writer.keep_room(is_kept=False)
            while True:
                try:
                    return append()
                except DiskFullError:
                    is_used = True
                    if not reserve.give_back():
                        with suppress(HoldfastError):
                            reserve.make_whole()
                        raise
        finally:
            is_same = writer.end[0] == sequence
            writer.keep_room(is_kept=is_used or (is_kept and is_same))

    def leave(self) -> None:
        """Reserve again what was given back, before the data file that keeps some is left.

        Raises
        ------
        DiskFullError, StorageError
            The disk has no space for that, and so none for the next data file.
        """
        if self._writer.keeps_room and self._reserve is not None:
            self._reserve.make_whole()

    def adopt(self, adopt: Callable[[], range]) -> range:
        """Leave the data file for one that is there, which takes no space; raises as ``adopt``."""
        reserve = self._reserve if self._writer.keeps_room else None
        offsets = adopt()
        if reserve is not None:
            with suppress(HoldfastError):  # of what the file before has given back
                reserve.make_whole()
        return offsets
