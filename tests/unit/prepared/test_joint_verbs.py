"""Requests for joint commits that say nothing of the kind."""

import pytest

from holdfast import UsageError
from holdfast.queue.prepared.joint_commits import ABORT, COLLECT, COMMIT, obey_jointly

DECISIONS_OF_NOBODY = None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"verb": COMMIT, "application": "a", "version": "x", "ids": []},
        {"verb": COMMIT, "application": "a", "version": 1},
        {"verb": COMMIT, "application": "a", "version": float("inf"), "ids": []},
        {"verb": ABORT, "version": 1},
        {"verb": COLLECT, "older_than_seconds": "long"},
        {"verb": COLLECT, "older_than_seconds": None},
    ],
    ids=repr,
)
def test_a_request_that_cannot_be_made_out_does_nothing(fields: dict[str, object]) -> None:
    """Another process has written it: it is refused before anybody is asked."""
    with pytest.raises(UsageError, match="not a request for a joint commit"):
        obey_jointly(DECISIONS_OF_NOBODY, fields)  # type: ignore[arg-type]
