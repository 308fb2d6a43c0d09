"""``queue.joint_commits``: several prepared transactions committed as one, once, by many processes. docs/adr/0039."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.errors import UsageError
from holdfast.persistence.filesystem.layout import check_name
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.joint_resolver import JointResolver, check_age, check_part_of
from holdfast.queue.verbs.verb_log import logged, own_process

COMMIT = "commit_jointly"
ABORT = "abort_jointly"
COLLECT = "collect"
JOINT_VERBS = (COMMIT, ABORT, COLLECT)
"""Verbs of requests by which a handle that submits has the owner decide: docs/format.md, "Requests"."""


class JointCommits:
    """Commits many prepared transactions, of any processes, as one.

    Each commit belongs to an **application**, which is a name, and has a **version** that grows. A transaction is
    prepared as a part of one: ``tx.prepare(part_of=(application, version))``. Committing a version a second time does
    nothing, nor does an earlier one; so a process that does not know whether it has committed commits again.

    Works with every mode that puts: "exclusive" and "produce"; "shared" and "submit", through the owner.
    """

    def __init__(self, handle: QueueHandle, resolver: JointResolver, *, check_open: Callable[[], None]) -> None:
        self._handle = handle
        self._resolver = resolver
        self._check_open = check_open

    def latest(self, application: str) -> int | None:
        """Return the version that an application has committed last; None if none is remembered.

        Raises
        ------
        CorruptionError, StorageError
            The document of joint commits cannot be read.
        """
        self._check_open()
        commit = self._handle.joint_file().find(check_name(application, "application"))
        return None if commit is None else commit.version

    def commit(self, application: str, version: int, ids: Sequence[str], *, is_remembered: bool = True) -> None:
        """Commit prepared transactions as one; if this version or a later one was committed before, do nothing.

        Parameters
        ----------
        application : str
            1 to 100 of ``A-Z a-z 0-9 . _ -`` without a leading dot.
        version : int
            From 0 to 2**63 - 1.
        ids : sequence of str
            The id that ``prepare`` returned for each part. Their messages come into the log in this order, those of
            each part together. All other parts of this version, and of earlier ones, are aborted.
        is_remembered : bool
            False if this application will never commit again: once it is done it takes no place among the
            1,024 applications that are remembered.

        Raises
        ------
        TransactionNotFoundError, TransactionStateError, CorruptionError
            One is not prepared, not as a part of this, or is damaged; nothing was committed.
        DiskFullError, StorageError
            Nothing was committed; or it is, as ``latest`` tells: then commit again, or reopen the queue, and the
            missing messages become visible.
        CommitUnknownError, PoisonedError
            It may have happened or not, or an earlier failure has poisoned this side: reopen the queue and check.

        Notes
        -----
        Durability: power loss, under any flush policy. Cost: three syncs, and those of committing each
        part. All or nothing holds over every crash; while it runs, consumers may see the first parts and not yet the
        last.
        """
        self._check_open()
        check_part_of(application, version)
        if self._handle.submit_side is not None:
            of = {"application": application, "version": version}
            asked = {"verb": COMMIT, **of, "ids": list(ids), "is_remembered": is_remembered}
            self._handle.submit_side.ask(asked)
        else:
            self._resolver.commit(application, version, ids, is_remembered=is_remembered)

    def abort(self, application: str, version: int) -> None:
        """Abort the parts of this version, and of earlier ones, that were not committed. Raises as :meth:`commit`."""
        self._check_open()
        check_part_of(application, version)
        details = {"application": application, "version": version}
        if self._handle.submit_side is not None:
            self._handle.submit_side.ask({"verb": ABORT, **details})
        else:
            self._logged(ABORT, details, partial(self._resolver.abort, application, version))

    def collect(self, older_than_seconds: float, *, id_prefix: str = "") -> None:
        """Abort the parts of any application that were prepared so long ago and not committed since.

        Parameters
        ----------
        older_than_seconds : float
            By the wall clock.
        id_prefix : str
            Only those whose ids begin so; empty: all of them.
        """
        self._check_open()
        check_age(older_than_seconds)
        details = {"older_than_seconds": older_than_seconds, "id_prefix": id_prefix}
        if self._handle.submit_side is not None:
            self._handle.submit_side.ask({"verb": COLLECT, **details})
        else:
            self._logged(COLLECT, details, partial(self._resolver.collect, older_than_seconds, id_prefix))

    def _logged(self, verb: str, details: dict[str, Any], do: Callable[[], None]) -> None:
        if self._handle.asks_owner:
            do()
        else:
            logged(self._handle.path, verb, details, own_process(), do)


def obey_jointly(commit_records: JointResolver, fields: dict[str, Any]) -> None:
    """Perform a request; raises UsageError if it is not a request for a joint commit."""
    try:
        verb = fields["verb"]
        seconds = float(fields["older_than_seconds"]) if verb == COLLECT else 0.0
        application, version = ("", 0) if verb == COLLECT else (str(fields["application"]), int(fields["version"]))
        ids = [str(each) for each in fields["ids"]] if verb == COMMIT else []
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError("not a request for a joint commit that this version knows") from None
    if verb == COMMIT:
        commit_records.commit(application, version, ids, is_remembered=bool(fields.get("is_remembered", True)))
    elif verb == ABORT:
        commit_records.abort(application, version)
    else:
        commit_records.collect(seconds, str(fields.get("id_prefix", "")))
