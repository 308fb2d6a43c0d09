"""The verbs about transactions that are prepared, as the fields of a ``Verb``: docs/protocol.md. Pure.

Each may be done twice: one that gets no answer is asked again, of a successor perhaps.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from holdfast.errors import UsageError
from holdfast.queue.protocol.messages import Count, Name, Nonce, Seconds, Verb


class PreparedVerb(msgspec.Struct, tag_field="verb", forbid_unknown_fields=True):
    """Base of these verbs. An unknown field is refused: it could matter to a client of a newer version."""


class HasSpace(PreparedVerb, tag="has_space"):
    """Whether a bounded queue has space for so many messages, with so many bytes of frames."""

    count: Count
    size_bytes: Count


class CommitPrepared(PreparedVerb, tag="commit_prepared"):
    """Commits a prepared transaction; with a nonce only that one, not a later one of the same id."""

    id: str
    force: bool = False
    nonce: Nonce | None = None


class AbortPrepared(PreparedVerb, tag="abort_prepared"):
    """Aborts a prepared transaction; fields as those of :class:`CommitPrepared`."""

    id: str
    force: bool = False
    nonce: Nonce | None = None


class Resolve(PreparedVerb, tag="resolve"):
    """Follows what other queues and joint commits have decided."""


class Begin(PreparedVerb, tag="begin"):
    """Begins a commit over several queues in the queue that decides: from here on its outcome is in doubt."""

    nonce: Nonce


class End(PreparedVerb, tag="end"):
    """Ends what was begun. If all parts follow durably, its commit record may end, too."""

    nonce: Nonce
    is_followed: bool


class Follow(PreparedVerb, tag="follow"):
    """Has a part follow what the log of another queue has decided."""

    id: Name
    nonce: Nonce
    is_committed: bool


class AskOutcome(PreparedVerb, tag="outcome"):
    """Asks the queue that decides: "committed", "aborted" or "in doubt"."""

    nonce: Nonce


class CommitJointly(PreparedVerb, tag="commit_jointly"):
    """Commits prepared transactions as one: ``JointCommits.commit``."""

    application: Name
    version: Count
    ids: list[str]
    is_remembered: bool


class AbortJointly(PreparedVerb, tag="abort_jointly"):
    """Aborts parts that were not committed: ``JointCommits.abort``."""

    application: Name
    version: Count


class Collect(PreparedVerb, tag="collect"):
    """Aborts parts that have waited for so long: ``JointCommits.collect``."""

    older_than_seconds: Seconds
    id_prefix: str


AnyPreparedVerb = (
    HasSpace
    | CommitPrepared
    | AbortPrepared
    | Resolve
    | Begin
    | End
    | Follow
    | AskOutcome
    | CommitJointly
    | AbortJointly
    | Collect
)

PREPARED_VERBS = frozenset(str(each.__struct_config__.tag) for each in get_args(AnyPreparedVerb))
"""Their names."""


def as_request(verb: AnyPreparedVerb) -> Verb:
    """Return the request for a verb."""
    return Verb("", msgspec.to_builtins(verb, builtin_types=(bytes,)))


def read_prepared_verb(fields: dict[str, Any]) -> AnyPreparedVerb:
    """Return the verb that fields say; raises UsageError."""
    try:
        verb: AnyPreparedVerb = msgspec.convert(fields, AnyPreparedVerb)
    except msgspec.ValidationError as error:
        raise UsageError(f"not a verb on prepared transactions that this version knows: {error}") from None
    return verb
