"""The transactional verbs of ``PersistentQueue``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import UsageError
from holdfast.queue.closing import Closing
from holdfast.queue.engine.idle_handles import IdleHandles
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.prepared.consumer_verdicts import ConsumerVerdicts
from holdfast.queue.prepared.joint_decisions import JointDecisions
from holdfast.queue.prepared.other_queues import asking
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.prepared.prepared_transactions import PreparedTransaction
from holdfast.queue.prepared.submitted_verdicts import SubmittedVerdicts
from holdfast.queue.remote.verb_log import logged, own_process
from holdfast.queue.server.group_asker import GroupAsker
from holdfast.queue.server.group_askers import GroupAskers
from holdfast.queue.server.request_server import RequestServer
from holdfast.queue.server.visitor import open_submit_side
from holdfast.queue.transactions.branch import Branch
from holdfast.queue.transactions.transaction import Transaction
from holdfast.queue.transactions.transaction_base import TIMEOUT_SECONDS, OpenTransactions, TransactionBase

Result = TypeVar("Result")


class Transactional(ABC):
    """Begins transactions, and decides those that were prepared. docs/transactions.md."""

    sides: QueueHandle
    mode: str
    _record_bytes_max: int
    _resting: IdleHandles | None = None
    _server: RequestServer | None = None
    _closing: Closing

    def _open_transactions(self) -> None:
        """Take up what was prepared before; the sides are open. Where it raises, ``_give_up_opening`` does the rest."""
        sides = self.sides
        self._transactions = OpenTransactions()
        self._group_asker = GroupAsker(sides)
        self._group_askers = GroupAskers(sides)
        ask = asking(sides.storage, sides.clock, sides.path)
        if sides.options.mode == "submit":
            sides.submit_side = side = open_submit_side(sides)
            self._in_doubt: PreparedResolver = SubmittedVerdicts(sides, ask, self._group_askers.do, side)
        elif sides.options.mode == "consume":
            self._in_doubt = ConsumerVerdicts(sides, ask, self._group_askers.do, lambda: open_submit_side(sides))
        else:
            self._in_doubt = PreparedResolver(sides, ask, self._group_askers.do)
        self._joint_decisions = JointDecisions(sides, self._in_doubt)
        if sides.look_side is None:
            self._joint_decisions.resume()
            self._in_doubt.resolve()
        if sides.write_side is not None or sides.read_side is not None:
            self._resting = IdleHandles(sides)
            self._server = RequestServer(sides, self._in_doubt)
        askers = (self._group_asker, self._group_askers)
        self._closing = Closing(sides, self._transactions, self._in_doubt, askers, self._resting, self._server)

    def _give_up_opening(self) -> None:
        """Let go of what was opened so far."""
        if hasattr(self, "_closing"):
            self._closing.is_over = True
        try:
            for part in (self._resting, self._server):
                if part is not None:
                    part.stop()
        finally:
            self.sides.close()

    def _forget_transactions(self) -> None:
        self._transactions.forget()
        self._group_asker.forget()
        self._group_askers.forget()
        if self._server is not None:
            self._server.forget()
        self._in_doubt.forget()

    def transaction(self, *, timeout: float = TIMEOUT_SECONDS) -> Transaction:
        """Begin a transaction whose ``with`` block commits on a clean exit, and aborts on an exception.

        Parameters
        ----------
        timeout : float, seconds
            After so long it aborts, and gives back what it has received; a prepared one waits for ever.

        Examples
        --------
        >>> with queue.transaction() as tx:  # doctest: +SKIP
        ...     message = tx.receive(timeout=1)
        ...     tx.put(b"result")
        ...     tx.ack(message)
        """
        return self.begin(timeout=timeout)

    def begin(self, *, timeout: float = TIMEOUT_SECONDS) -> Transaction:
        """Begin a transaction that is ended by hand: ``commit``, ``abort``, or ``prepare`` and then one of these."""
        self._check_may_take_part()
        transaction = Transaction(self.sides, self._in_doubt, self._record_bytes_max, timeout)
        self._transactions.add(transaction)
        return transaction

    def join_transaction(self, transaction: TransactionBase, nonce: bytes) -> Branch:
        """Return this queue's part of a transaction over several: see :func:`holdfast.transaction`."""
        self._check_may_take_part()
        if self.sides.submit_side is not None:
            raise UsageError("a queue opened with mode='submit' takes part in no transaction over several queues")
        self._transactions.add(transaction)
        return Branch(self.sides, transaction, nonce, self._record_bytes_max)

    def prepared(self) -> list[PreparedTransaction]:
        """Return the transactions that are durable and undecided, oldest first; of one moment by id.

        Damaged ones are among them, and say so. What another queue has decided meanwhile is settled first. The first
        look at a batch from before a restart reads all of it.
        """
        self._check_open()
        self._joint_decisions.resume()
        return self._in_doubt.prepared()

    def commit_prepared(self, id: str, *, force: bool = False) -> range:  # the word users know
        """Commit a prepared transaction; return the offsets of its puts. A second time returns the same.

        What of it other handles own, in whichever process, they are asked to do.

        Parameters
        ----------
        id : str
            What ``prepare`` returned.
        force : bool
            Decide here what another queue's log should: for when that queue is gone. May break all-or-nothing.

        Raises
        ------
        TransactionNotFoundError
            None of that id is in doubt, and none was decided lately (docs/transactions.md, "What is remembered").
        TransactionStateError
            It was aborted, or another queue decides it.
        CorruptionError
            Some of it is damaged; nothing was done. It can be aborted.
        QueueLockedError
            It holds messages of a group whose owner does not answer, or cannot be asked; nothing was done.
        RetryableError
            The owner of the write side does not answer; nothing was done.
        CommitUnknownError, PoisonedError
            Nobody knows, or an earlier failure stands: reopen the queue and look.
        """
        self._check_open()
        return self._logged("commit_prepared", id, force, lambda: self._in_doubt.commit(id, force=force))

    def abort_prepared(self, id: str, *, force: bool = False) -> None:  # the word users know
        """Abort a prepared transaction: its puts are gone, its messages ready again. A second time does nothing.

        Raises as :meth:`commit_prepared`; a damaged one is aborted like any other.
        """
        self._check_open()
        self._logged("abort_prepared", id, force, lambda: self._in_doubt.abort(id, force=force))

    def _logged(self, verb: str, transaction_id: str, force: bool, do: Callable[[], Result]) -> Result:
        if self.sides.submit_side is not None:  # the owner does it, and logs it
            return do()
        return logged(self.sides.path, verb, {"id": transaction_id, "force": force}, own_process(), do)

    def _check_may_take_part(self) -> None:
        self._check_open()
        if self.sides.options.mode == "look":
            raise UsageError(f"a queue opened with mode={self.mode!r} owns no side, so it begins no transaction")

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ClosedError or ForkedError where the handle is of no use any more."""
