"""What transactions do, in short runs that cover every storage call of them. Each takes a run and leaves it."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.queue.options.queue_options import Mode
from support.workloads.transaction_runs import LARGE, TransactionRun

Scenario = Callable[[TransactionRun], None]


# -- One queue -------------------------------------------------------------------------------------------------------


def _one(run: TransactionRun) -> None:
    """Begin with one queue and a few messages that nobody has synced where the policy does not."""
    run.open(a="exclusive")
    run.put("a", 40, 50, 600)
    run.put("a", 70)


def puts_and_acks(run: TransactionRun) -> None:
    """A plain commit of both."""
    _one(run)
    run.begin("t", puts={"a": (30, 700)}, acks={"a": 2})
    run.commit("t")
    run.put("a", 20)
    run.close()


def puts_only(run: TransactionRun) -> None:
    """A plain commit of puts, between others."""
    _one(run)
    run.begin("t", puts={"a": (30, 0, 700)})
    run.begin("u", puts={"a": (10,)})
    run.commit("u")
    run.commit("t")
    run.close()


def acks_only(run: TransactionRun) -> None:
    """A plain commit of acknowledgements."""
    _one(run)
    run.begin("t", acks={"a": 2})
    run.commit("t")
    run.begin("u", acks={"a": 1})
    run.commit("u")
    run.close()


def aborted(run: TransactionRun) -> None:
    """An abort before prepare, spilled and not."""
    _one(run)
    run.begin("t", puts={"a": (30,)}, acks={"a": 2})
    run.abort("t")
    run.begin("u", puts={"a": (LARGE, LARGE)}, acks={"a": 1})
    run.abort("u")
    run.close()


def prepared_and_committed(run: TransactionRun) -> None:
    """Prepare, then commit in the same process."""
    _one(run)
    run.begin("t", puts={"a": (30, 700)}, acks={"a": 2})
    run.prepare("t")
    run.put("a", 20)
    run.commit("t")
    run.close()


def prepared_and_aborted(run: TransactionRun) -> None:
    """Prepare, then abort in the same process; the id is used again."""
    _one(run)
    run.begin("t", puts={"a": (30, 700)}, acks={"a": 2})
    run.prepare("t", "again")
    run.abort("t")
    run.begin("u", puts={"a": (10,)}, acks={"a": 1})
    run.prepare("u", "once-more")
    run.close()


def prepared_puts_only(run: TransactionRun) -> None:
    """Prepared puts without acknowledgements: one is committed, one is aborted."""
    _one(run)
    run.begin("t", puts={"a": (30, 700)})
    run.begin("u", puts={"a": (10, 20)})
    run.prepare("t")
    run.prepare("u")
    run.commit("t")
    run.abort("u")
    run.close()


def prepared_acks_only(run: TransactionRun) -> None:
    """Prepared acknowledgements without puts: one is committed, one is aborted."""
    _one(run)
    run.begin("t", acks={"a": 2})
    run.begin("u", acks={"a": 1})
    run.prepare("t")
    run.prepare("u")
    run.commit("t")
    run.abort("u")
    run.close()


def decided_after_a_restart(run: TransactionRun) -> None:
    """Three transactions are prepared; a later process commits one and aborts one."""
    _one(run)
    for key, puts, acks in (("t", (30, 700), 1), ("u", (10,), 1), ("v", (20,), 1)):
        run.begin(key, puts={"a": puts}, acks={"a": acks})
        run.prepare(key, f"id-{key}")
    run.close()
    run.open(a="exclusive")
    run.commit_prepared("t")
    run.abort_prepared("u")
    run.close()


def decided_after_a_kill(run: TransactionRun) -> None:
    """The same behind a SIGKILL, twice in a row before anything is appended."""
    _one(run)
    run.begin("t", puts={"a": (30, 700)}, acks={"a": 1})
    run.prepare("t")
    run.begin("u", puts={"a": (10,)}, acks={"a": 1})
    run.commit("u")
    run.kill()
    run.open(a="exclusive")
    run.kill()
    run.open(a="exclusive")
    run.commit_prepared("t")
    run.kill()
    run.open(a="exclusive")
    run.put("a", 10)
    run.close()


def decided_for_another_group(run: TransactionRun) -> None:
    """A handle of another group decides: it visits the group that holds the messages."""
    _one(run)
    run.queues["a"].groups.create("other")
    for key in ("t", "u"):
        run.begin(key, puts={"a": (30,)}, acks={"a": 1})
        run.prepare(key)
    run.close()
    run.groups["a"] = "other"
    run.open(a="exclusive")
    run.commit_prepared("t")
    run.abort_prepared("u")
    run.close()


def decided_without_the_log(run: TransactionRun) -> None:
    """What only acknowledges is prepared and decided: the group alone says what became of it."""
    _one(run)
    run.close()
    run.open(a="exclusive")
    for key in ("t", "u"):
        run.begin(key, acks={"a": 1})
        run.prepare(key)
    run.commit("t")
    run.close()
    run.open(a="exclusive")
    run.abort_prepared("u")
    run.close()


def spilled_and_adopted(run: TransactionRun) -> None:
    """A plain commit too large for memory and for copying: its file becomes a data file."""
    _one(run)
    run.begin("t", puts={"a": (LARGE, LARGE, 10)}, acks={"a": 2})
    run.commit("t")
    run.put("a", 10)
    run.close()


def prepared_and_adopted(run: TransactionRun) -> None:
    """The same, prepared; and at once a second one behind it, before anything is appended."""
    _one(run)
    run.begin("t", puts={"a": (LARGE, LARGE)}, acks={"a": 1})
    run.begin("u", puts={"a": (LARGE, LARGE)}, acks={"a": 1})
    run.prepare("t")
    run.prepare("u")
    run.commit("t")
    run.commit("u")
    run.close()


def adopted_after_a_kill(run: TransactionRun) -> None:
    """Adopted behind an unclean close, with open decisions to carry into its file."""
    _one(run)
    run.begin("t", puts={"a": (LARGE, LARGE)}, acks={"a": 1})
    run.prepare("t")
    run.begin("u", puts={"a": (10,)}, acks={"a": 1})
    run.commit("u")
    run.kill()
    run.open(a="exclusive")
    run.commit_prepared("t")
    run.kill()
    run.open(a="exclusive")
    run.close()


def streamed(run: TransactionRun) -> None:
    """Messages that come in pieces: small enough to be copied, and large."""
    _one(run)
    run.begin("t", streams={"a": (900,)}, puts={"a": (10,)}, acks={"a": 1})
    run.commit("t")
    run.begin("u", streams={"a": (5000,)})
    run.commit("u")
    run.close()


def rolled_with_open_decisions(run: TransactionRun) -> None:
    """Decisions that have not ended are carried into the next data file, and into the one after that."""
    _one(run)
    run.begin("t", puts={"a": (30,)}, acks={"a": 1})
    run.commit("t")
    run.put("a", *[LARGE] * 4)
    run.begin("u", puts={"a": (30,)}, acks={"a": 1})
    run.commit("u")
    run.put("a", *[LARGE] * 4)
    run.close()


# -- Two queues ------------------------------------------------------------------------------------------------------


def _two(run: TransactionRun, **modes: Mode) -> None:
    """Begin with messages in "a", opened again as ``modes`` say; "b" is empty."""
    run.open(a="exclusive", b="exclusive")
    run.put("a", 40, 50, 600)
    run.put("a", 70)
    if modes:
        run.close("a", "b")
        run.open(**modes)


def from_one_to_the_other(run: TransactionRun) -> None:
    """The coordinator only puts; the participant only acknowledges."""
    _two(run)
    run.begin("t", puts={"b": (30, 700)}, acks={"a": 2})
    run.commit("t")
    run.close("a", "b")


def from_one_to_the_other_opened_again(run: TransactionRun) -> None:
    """The same, of queues that were recovered; the coordinator is closed first."""
    _two(run, a="exclusive", b="exclusive")
    run.begin("t", puts={"b": (30, 700)}, acks={"a": 2})
    run.commit("t")
    run.close("b", "a")


def both_put_and_acknowledge(run: TransactionRun) -> None:
    """Coordinator and participant do both."""
    _two(run)
    run.put("b", 10, 20)
    run.begin("t", puts={"a": (30,), "b": (40, 50)}, acks={"a": 2, "b": 1})
    run.commit("t")
    run.close("a", "b")


def both_put(run: TransactionRun) -> None:
    """The participant only puts."""
    _two(run)
    run.begin("t", puts={"a": (30,), "b": (40, 50)})
    run.commit("t")
    run.begin("u", puts={"b": (30,), "a": (40, 50)}, acks={"b": 1})
    run.commit("u")
    run.close("b", "a")


def the_coordinator_only_acknowledges(run: TransactionRun) -> None:
    """Nobody puts: the decision stands alone in the log."""
    _two(run)
    run.put("b", 10, 20)
    run.begin("t", acks={"a": 2, "b": 1})
    run.commit("t")
    run.close("a", "b")


def both_are_large(run: TransactionRun) -> None:
    """Batches of both are adopted."""
    _two(run)
    run.begin("t", puts={"a": (LARGE, LARGE), "b": (LARGE, LARGE)}, acks={"a": 1})
    run.commit("t")
    run.close("a", "b")


def the_coordinator_rolls(run: TransactionRun) -> None:
    """The coordinator's file is full before and after the decision; the participant is closed meanwhile."""
    _two(run)
    run.begin("t", puts={"b": (30,), "a": (10,)}, acks={"a": 1})
    run.commit("t")
    run.close("a")
    run.put("b", *[LARGE] * 4)
    run.put("b", *[LARGE] * 4)
    run.close("b")


def one_after_the_other(run: TransactionRun) -> None:
    """A kill between two transactions, and the second one goes the other way."""
    _two(run)
    run.begin("t", puts={"b": (30,)}, acks={"a": 1})
    run.commit("t")
    run.kill()
    run.open(b="exclusive", a="exclusive")
    run.begin("u", puts={"a": (40,)}, acks={"b": 1})
    run.commit("u")
    run.close("b", "a")


SCENARIOS: tuple[Scenario, ...] = (
    puts_and_acks,
    puts_only,
    acks_only,
    aborted,
    prepared_and_committed,
    prepared_and_aborted,
    prepared_puts_only,
    prepared_acks_only,
    decided_after_a_restart,
    decided_after_a_kill,
    decided_for_another_group,
    decided_without_the_log,
    spilled_and_adopted,
    prepared_and_adopted,
    adopted_after_a_kill,
    streamed,
    rolled_with_open_decisions,
    from_one_to_the_other,
    from_one_to_the_other_opened_again,
    both_put_and_acknowledge,
    both_put,
    the_coordinator_only_acknowledges,
    both_are_large,
    the_coordinator_rolls,
    one_after_the_other,
)
