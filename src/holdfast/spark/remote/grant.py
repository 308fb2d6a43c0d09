"""What a token allows: one queue and what one plan needs of it, or a write into the queues of one directory.

Travels from driver to range server, as JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Grant:
    """What the tasks of one plan may ask for.

    Attributes
    ----------
    root, queue_id
        The queue, whose data files they may read.
    notes : Path or None
        The directory in which they may note lost messages of ``batch_id``; None: nowhere.
    batch_id : str
        The drained batch.
    write_id : str
        The write whose tasks may stage messages, and may read nothing; empty: none.
    column : str
        Of a write into many queues, chooses the queue; then ``root`` is their directory, and ``queue_id`` the id of the
        document there. Empty: ``root`` is a queue.
    create : bool
        Whether such a write makes queues.
    """

    root: Path
    queue_id: bytes
    notes: Path | None = None
    batch_id: str = ""
    write_id: str = ""
    column: str = ""
    create: bool = False

    def to_text(self) -> str:
        """Return the grant as a line of JSON."""
        fields = asdict(self) | {"root": str(self.root), "queue_id": self.queue_id.hex()}
        return json.dumps(fields | {"notes": None if self.notes is None else str(self.notes)})

    @classmethod
    def from_text(cls, text: str) -> Grant:
        """Return the grant in a line that :meth:`to_text` made."""
        fields = json.loads(text)
        notes = None if fields["notes"] is None else Path(fields["notes"])
        return cls(
            **fields | {"root": Path(fields["root"]), "queue_id": bytes.fromhex(fields["queue_id"]), "notes": notes}
        )
