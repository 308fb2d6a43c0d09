"""How a handle that submits has the owner decide jointly: the fields of the request. docs/format.md, "Requests"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import UsageError
from holdfast.queue.prepared.joint_decisions import JointDecisions

COMMIT = "commit_jointly"
ABORT = "abort_jointly"
COLLECT = "collect"
JOINT_VERBS = (COMMIT, ABORT, COLLECT)


def commit_fields(
    application: str, version: int, ids: Sequence[str], *, is_remembered: bool = True
) -> dict[str, object]:
    """Return the request to commit parts as one."""
    of = {"application": application, "version": version}
    return {"verb": COMMIT, **of, "ids": list(ids), "is_remembered": is_remembered}


def abort_fields(application: str, version: int) -> dict[str, object]:
    """Return the request to let go of parts."""
    return {"verb": ABORT, "application": application, "version": version}


def collect_fields(older_than_seconds: float, id_prefix: str) -> dict[str, object]:
    """Return the request to let go of what is old."""
    return {"verb": COLLECT, "older_than_seconds": older_than_seconds, "id_prefix": id_prefix}


def obey_jointly(decisions: JointDecisions, fields: dict[str, Any]) -> None:
    """Do what a request says; raises UsageError where it says nothing of the kind."""
    try:
        verb = fields["verb"]
        seconds = float(fields["older_than_seconds"]) if verb == COLLECT else 0.0
        application, version = ("", 0) if verb == COLLECT else (str(fields["application"]), int(fields["version"]))
        ids = [str(each) for each in fields["ids"]] if verb == COMMIT else []
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError("not a request for a joint commit that this version knows") from None
    if verb == COMMIT:
        decisions.commit(application, version, ids, is_remembered=bool(fields.get("is_remembered", True)))
    elif verb == ABORT:
        decisions.abort(application, version)
    else:
        decisions.collect(seconds, str(fields.get("id_prefix", "")))
