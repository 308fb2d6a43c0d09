"""Where a range server is, and what a task needs to be let in. It travels in the plan, from driver to task."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

SERVER_NAME = "holdfast-range-server"
"""The name in each server's certificate: tasks trust that certificate alone, whatever the host is called."""


@dataclass(frozen=True, slots=True)
class Place:
    """A range server.

    Attributes
    ----------
    hosts : tuple of str
        Names or addresses of its host; the first one that answers is used.
    port : int
        Its port.
    certificate : bytes
        In PEM; the server made it for itself.
    token : str
        What a request of this plan carries; it says which queue, and what may be done with it.
    """

    hosts: tuple[str, ...]
    port: int
    certificate: bytes = field(repr=False)
    token: str = field(repr=False)

    def to_text(self) -> str:
        """Return the place as an option of a DataFrame."""
        return json.dumps([self.hosts, self.port, self.certificate.decode(), self.token])

    @classmethod
    def from_text(cls, text: str) -> Place:
        """Return the place in an option."""
        hosts, port, certificate, token = json.loads(text)
        return cls(tuple(hosts), port, certificate.encode(), token)

    def __str__(self) -> str:
        return f"{' or '.join(self.hosts)}, port {self.port}"
