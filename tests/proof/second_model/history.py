"""A history: what was called, when, and what was answered."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proof.second_model.facts import Now


@dataclass(frozen=True)
class Call:
    """A verb with its arguments, as plain values: payloads, offsets, numbers of deliveries and of transactions."""

    verb: str
    now: Now
    arguments: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return an argument; None where it was left out."""
        return self.arguments.get(name)

    def __str__(self) -> str:
        """Return one line for people."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.now.mono / 1e9:.3f} {self.verb}({given})"


@dataclass(frozen=True)
class Answer:
    """What came back, as plain values; or the class of the error."""

    value: Any = None
    error: str | None = None

    def __str__(self) -> str:
        """Return one line for people."""
        return f"raised {self.error}" if self.error else repr(self.value)


class Seen(NamedTuple):
    """A message as the queue has shown it."""

    offset: int
    payload: bytes
    delivery_count: int = 0
    receipt: int | None = None
    state: str = ""
    until: int | None = None
    reason: str = ""
    detail: str = ""
