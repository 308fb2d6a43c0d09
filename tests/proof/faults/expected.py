"""What may be there after a call: one view as a whole, and for some keys more than one state."""

from __future__ import annotations

from dataclasses import dataclass, field

from proof.faults.views import Key, View, ViolationError, differences, soft


@dataclass(frozen=True)
class Expected:
    """What may be there: one of some views; and some keys may be of either kind besides.

    Attributes
    ----------
    views : tuple of View
        Of which one is there as a whole.
    either : dict of Key to set
        What a key may say as well.
    """

    views: tuple[View, ...]
    either: dict[Key, set[str | None]] = field(default_factory=dict)

    def check(self, found: View, what: str) -> None:
        """Raise ViolationError where ``found`` is none of it."""
        for view in self.views:
            keys = found.keys() | view.keys()
            if all(found.get(key) == view.get(key) or found.get(key) in self.either.get(key, ()) for key in keys):
                return
        lines = [", ".join(differences(found, view)[:6]) for view in self.views]
        raise ViolationError(f"{what}: {'; or '.join(lines)}")

    def softened(self) -> Expected:
        """Return the same for soft views."""
        either: dict[Key, set[str | None]] = {}
        for key, states in self.either.items():
            either[key] = {None if state is None else soft({key: state}).get(key) for state in states}
        return Expected(tuple(map(soft, self.views)), either)

    def without(self, *views: View) -> Expected:
        """Return the same, where each key may also be as in ``views``."""
        keys = {key for view in (*self.views, *views) for key in view}
        either = {key: set(self.either.get(key, ())) | {view.get(key) for view in views} for key in keys}
        return Expected(self.views, either)
