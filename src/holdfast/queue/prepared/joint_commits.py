"""``queue.joint_commits``: several prepared transactions committed as one, once, by many processes. docs/adr/0039."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.persistence.filesystem.layout import check_name
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.joint_resolver import JointResolver, check_age, check_part_of
from holdfast.queue.verbs.verb_log import logged, own_process

ABORT = "abort_jointly"
COLLECT = "collect"


class JointCommits:
    """Commits many prepared transactions, of any processes, as one.

    Each commit belongs to an **application**, which is a name, and has a **version** that grows. A transaction is
    prepared as a part of one: ``tx.prepare(part_of=(application, version))``. Committing a version a second time does
    nothing, nor does an earlier one; so a process that does not know whether it has committed commits again.

    Works with every mode that puts: "exclusive", and "shared" through the owner.
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
        do = partial(self._resolver.commit, application, version, ids, is_remembered=is_remembered)
        if self._handle.producer is not None:  # the owner finishes it before it ends
            do()
        else:
            self._handle.calls.run(do)

    def abort(self, application: str, version: int) -> None:
        """Abort the parts of this version, and of earlier ones, that were not committed. Raises as :meth:`commit`."""
        self._check_open()
        check_part_of(application, version)
        details = {"application": application, "version": version}
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
        self._logged(COLLECT, details, partial(self._resolver.collect, older_than_seconds, id_prefix))

    def _logged(self, verb: str, details: dict[str, Any], do: Callable[[], None]) -> None:
        if self._handle.producer is not None:  # the owner logs it
            do()
        else:
            logged(self._handle.path, verb, details, own_process(), partial(self._handle.calls.run, do))
