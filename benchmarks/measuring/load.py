"""What is put and taken: so many records of so many bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

DATA_FILE_BYTES = 50 * 10**6
"""Size of the files, of the queue's and of the floors'."""

BATCH = 100
"""Records of one ``put_many``, ``get_many``, ``receive_many`` and ``writev``."""


@dataclass(frozen=True)
class Load:
    """So many records of one size.

    Attributes
    ----------
    count : int
        Records.
    size : int, bytes
        Of one record's payload.
    """

    count: int
    size: int

    @cached_property
    def payload(self) -> bytes:
        """One record; all are the same object, for the floors too, so that nobody waits for memory alone."""
        return random.Random(self.size).randbytes(self.size)

    @property
    def batches(self) -> int:
        """How many batches the records make."""
        return self.count // BATCH
