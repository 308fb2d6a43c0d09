"""A second model, written from the documentation alone, judges random histories, and those of the first model.

It also judges the recorded runs of ``tests/crash/prefixes/test_every_prefix_recovers.py`` and a run of
``test_deliveries_against_model.py``. It does not follow what ``test_queue_against_model.py`` and
``test_transactions_against_model.py`` do: it knows a loss of power under ``every_commit`` only, one queue in a
transaction, one handle at a time that takes, and no ``put_stream``, joint commits, merges or reservations. Groups that
it does not take for have a filter, and are moved, skipped and swept beside it.
"""

import time
from collections.abc import Callable

import pytest

from holdfast import Full, PersistentQueue
from proof.second_model.facts import SECOND_NS, DisagreementError, Now, TooManyStatesError
from proof.second_model.history import Answer, Call, Seen
from proof.second_model.judge import Judge
from proof.second_model.runs import full_at_once, judged_history
from proof.second_model.witness import watching
from support.builders.clocks import FakeClock
from support.builders.handles import no_passes
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.work_runs import WorkRun

HISTORIES = range(1, 13)
STEPS = 80
FIRST_MODEL_SEEDS = range(2)
FIRST_MODEL_STEPS = 120
THREE_FILES = [(0, 2**26), (1, 2**26), (2, 2**18)]
NOW = Now(1_700_000_000_000_000_000, 1_000_000_000_000)


def later(seconds: int) -> Now:
    """Return what the clocks say some seconds after."""
    return Now(NOW.wall + seconds * SECOND_NS, NOW.mono + seconds * SECOND_NS)


@pytest.mark.extra("filter")
@pytest.mark.parametrize("seed", HISTORIES)
def test_random_histories_are_what_the_documentation_says(seed: int) -> None:
    """Every answer is allowed, with restarts, kills and losses of power in between, also in the middle of a call."""
    run = judged_history(seed, STEPS)
    assert run.call_count > STEPS / 2
    assert run.trace is None, f"seed {seed}\n{run.trace}"


@pytest.mark.parametrize("seed", FIRST_MODEL_SEEDS)
def test_histories_of_the_first_model_are_judged_the_same(seed: int) -> None:
    """What the first model of a work queue allows the second one allows too, on the same calls."""
    with watching() as watch, no_passes():
        run = WorkRun(seed)
        for _ in range(FIRST_MODEL_STEPS):
            run.step()
        run.queue.close()
    assert watch.disagreements == []
    assert watch.call_count > FIRST_MODEL_STEPS
    assert watch.lost_count == 0


def put_two(judge: Judge) -> None:
    """Put two messages."""
    for offset, payload in enumerate((b"a", b"b")):
        judge.told(Call("put", NOW, {"payload": payload}), Answer(offset))


def out_of_order(judge: Judge) -> None:
    """Take the second one first."""
    judge.told(Call("get", NOW), Answer([b"b"]))


def lost(judge: Judge) -> None:
    """Find nothing, though there are messages."""
    judge.told(Call("get", NOW), Answer(error="Empty"))


def twice(judge: Judge) -> None:
    """Get one again that is done."""
    judge.told(Call("get", NOW), Answer([b"a"]))
    judge.told(Call("get", NOW), Answer([b"a"]))


def uncounted(judge: Judge) -> None:
    """Get a delivery that says it was not handed out."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 0, 1)]))


def stale(judge: Judge) -> None:
    """Acknowledge twice, and hear nothing."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("ack", NOW, {"receipts": [1]}), Answer())
    judge.told(Call("ack", NOW, {"receipts": [1]}), Answer())


def purged_in_hand(judge: Judge) -> None:
    """Purge one that is in hand."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("purge", NOW), Answer(2))


def left_by_a_purge(judge: Judge) -> None:
    """Purge one of two that are ready."""
    judge.told(Call("purge", NOW), Answer(1))


def back_after_a_purge(judge: Judge) -> None:
    """Get one again that is purged."""
    judge.told(Call("purge", NOW), Answer(2))
    judge.told(Call("get", NOW), Answer([b"a"]))


def purged_when_closed(judge: Judge) -> None:
    """Purge a queue that is closed, and hear nothing."""
    judge.told(Call("close", NOW), Answer())
    judge.told(Call("purge", NOW), Answer(2))


def above_a_bound(judge: Judge) -> None:
    """Put one more than a bound that was set."""
    judge.told(Call("configure", NOW, {"settings": {"maxsize": 2}}), Answer())
    judge.told(Call("put", NOW, {"payload": b"c"}), Answer(2))


def bound_forgotten(judge: Judge) -> None:
    """Put one more than that behind a loss of power."""
    judge.told(Call("configure", NOW, {"settings": {"maxsize": 2}}), Answer())
    judge.told(Call("power_loss", NOW), Answer())
    judge.told(Call("open", NOW, {"given": {}}), Answer())
    judge.told(Call("put", NOW, {"payload": b"c"}), Answer(2))


def bound_that_nobody_set(judge: Judge) -> None:
    """Find the queue full behind a change that was refused."""
    judge.told(Call("configure", NOW, {"settings": {"maxsize": 2}}), Answer(error="ConfigError"))
    judge.told(Call("put", NOW, {"payload": b"c"}), Answer(error="Full"))


def another_setting(judge: Judge) -> None:
    """Open with another value than the one that is set."""
    judge.told(Call("configure", NOW, {"settings": {"lease_seconds": 4}}), Answer())
    judge.told(Call("close", NOW), Answer())
    judge.told(Call("open", NOW, {"given": {"lease_seconds": 5}}), Answer())


def configured(judge: Judge, **settings: object) -> None:
    """Change settings."""
    judge.told(Call("configure", NOW, {"settings": settings}), Answer())


def too_large(judge: Judge) -> None:
    """Put a payload that is larger than what was set."""
    configured(judge, record_bytes_max=1)
    judge.told(Call("put", NOW, {"payload": b"cc"}), Answer(2))


def too_large_for_an_open_transaction(judge: Judge) -> None:
    """Have an open transaction refuse what was not too large when it began."""
    judge.told(Call("begin", NOW, {"tx": 1}), Answer())
    configured(judge, record_bytes_max=1)
    judge.told(Call("tx_put", NOW, {"tx": 1, "items": [{"payload": b"cc"}]}), Answer(error="RecordTooLargeError"))


def above_a_bound_of_bytes(judge: Judge) -> None:
    """Put what makes the data files take more than what was set."""
    configured(judge, max_bytes=2**27)
    judge.told(Call("put", NOW, {"payload": b"c", "files": THREE_FILES}), Answer(2))


def full_though_all_is_done(judge: Judge) -> None:
    """Find a bound of bytes reached by files in which every message is done."""
    configured(judge, max_bytes=2**27)
    judge.told(Call("get_many", NOW, {"max_messages": 2}), Answer([b"a", b"b"]))
    full = {"payload": b"c", "files": THREE_FILES}
    judge.told(Call("put", NOW, full), Answer(error="Full"))


def finished_messages_that_are_kept_no_more(judge: Judge) -> None:
    """Finish all messages while retention keeps them, and then let it go."""
    configured(judge, max_bytes=2**27, retain_bytes=2**30)
    judge.told(Call("get_many", NOW, {"max_messages": 2}), Answer([b"a", b"b"]))
    judge.told(Call("configure", NOW, {"settings": {}, "reset": ["retain_bytes"]}), Answer())


def full_of_what_a_pass_has_let_go(judge: Judge) -> None:
    """Find a bound of bytes reached by files that the pass behind it had to remove."""
    finished_messages_that_are_kept_no_more(judge)
    judge.told(Call("pass_over", NOW, {"before": THREE_FILES, "files": THREE_FILES, "begun": []}), Answer())
    judge.told(Call("full", NOW, {"files": THREE_FILES}), Answer(True))


def forgotten_at_a_longer_window(judge: Judge) -> None:
    """Put an id again that was remembered all the time."""
    judge.told(Call("put", NOW, {"payload": b"c", "dedup_id": "id"}), Answer(2))
    configured(judge, dedup_window=600)
    judge.told(Call("put", later(400), {"payload": b"d", "dedup_id": "id"}), Answer(3))


def remembered_beyond_a_shorter_window(judge: Judge) -> None:
    """Put an id again whose time is over since the change."""
    judge.told(Call("put", NOW, {"payload": b"c", "dedup_id": "id"}), Answer(2))
    configured(judge, dedup_window=10)
    judge.told(Call("put", later(11), {"payload": b"d", "dedup_id": "id"}), Answer(2))


def once_too_often(judge: Judge) -> None:
    """Get a message again that was delivered as often as it may be by now."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("nack", NOW, {"receipts": [1], "delay": 0}), Answer())
    configured(judge, max_deliveries=1)
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 2, 2)]))


def alive_again(judge: Judge) -> None:
    """Get a dead letter, which more deliveries do not bring back."""
    configured(judge, max_deliveries=1)
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("nack", NOW, {"receipts": [1]}), Answer())
    configured(judge, max_deliveries=2)
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 2, 2)]))


def swept_too_late(judge: Judge) -> None:
    """Find a dead letter behind a take, which was kept for as long as is set now."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("reject", NOW, {"receipts": [1], "reason": "no"}), Answer())
    judge.told(Call("configure", later(60), {"settings": {"dead_letter_seconds": 60}}), Answer())
    judge.told(Call("get", later(60)), Answer([b"b"]))
    judge.told(Call("dead_count", later(60)), Answer(1))


def a_group_by_the_rules_of_another(judge: Judge) -> None:
    """Find a dead letter that only another group, whose rules were changed, would have."""
    configured(judge, max_deliveries=1)
    judge.told(Call("create_group", NOW, {"name": "slow", "start": "earliest"}), Answer(0))
    judge.told(Call("close", NOW), Answer())
    judge.told(Call("open", NOW, {"given": {}, "group": "slow"}), Answer())
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("nack", NOW, {"receipts": [1], "delay": 0}), Answer())
    judge.told(Call("dead_count", NOW), Answer(1))


def half_of_what_was_refused(judge: Judge) -> None:
    """Find a bound of an opening that was refused for another setting."""
    configured(judge, max_deliveries=2)
    judge.told(Call("close", NOW), Answer())
    given = {"maxsize": 2, "max_deliveries": 3}
    judge.told(Call("open", NOW, {"given": given}), Answer(error="ConfigError"))
    judge.told(Call("open", NOW, {"given": {}}), Answer())
    judge.told(Call("put", NOW, {"payload": b"c"}), Answer(error="Full"))


def wrong_figures(judge: Judge) -> None:
    """Show a setting that was reset."""
    configured(judge, lease_seconds=4)
    judge.told(Call("configure", NOW, {"settings": {}, "reset": ["lease_seconds"]}), Answer())
    judge.told(Call("settings", NOW), Answer({"lease_seconds": 4}))


def less_than_two_files(judge: Judge) -> None:
    """Set a bound that leaves no room for two data files."""
    configured(judge, max_bytes=2**26)


SETTINGS = [above_a_bound, bound_forgotten, bound_that_nobody_set, another_setting, half_of_what_was_refused]
SETTINGS += [too_large, too_large_for_an_open_transaction, above_a_bound_of_bytes, full_though_all_is_done]
SETTINGS += [full_of_what_a_pass_has_let_go]
SETTINGS += [forgotten_at_a_longer_window, remembered_beyond_a_shorter_window, once_too_often, alive_again]
SETTINGS += [
    swept_too_late,
    a_group_by_the_rules_of_another,
    wrong_figures,
    less_than_two_files,
]


def given_back_and_passed_over(judge: Judge) -> None:
    """Get the second of two that were given back, though the log was read up to both."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("receive", NOW), Answer([Seen(1, b"b", 1, 2)]))
    judge.told(Call("nack", NOW, {"receipts": [2], "delay": 0}), Answer())
    judge.told(Call("release", NOW, {"receipts": [1]}), Answer())
    judge.told(Call("get", NOW), Answer([b"b"]))


def a_group_that_has_vanished(judge: Judge) -> None:
    """Find no group behind a kill, though a message was handed out."""
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("kill", NOW), Answer())
    judge.told(Call("open", NOW, {"given": {}}), Answer())
    judge.told(Call("list_groups", NOW), Answer([]))


def of_a_group_with_a_filter(judge: Judge) -> None:
    """Open the queue for a group that gets what has a header "kind" of "a", and what has none; put three kinds."""
    made = {"name": "other", "start": "latest", "filter": "headers.kind == 'a'"}
    judge.told(Call("create_group", NOW, made), Answer(2))
    for offset, headers in enumerate(({"kind": "a"}, {"kind": "b"}, {}), start=2):
        judge.told(Call("put", NOW, {"payload": b"%d" % offset, "headers": headers}), Answer(offset))
    judge.told(Call("close", NOW), Answer())
    judge.told(Call("open", NOW, {"given": {}, "group": "other"}), Answer())


def what_does_not_match(judge: Judge) -> None:
    """Get one that the filter leaves out."""
    of_a_group_with_a_filter(judge)
    judge.told(Call("get_many", NOW, {"max_messages": 9}), Answer([b"2", b"3", b"4"]))


def nothing_without_an_answer(judge: Judge) -> None:
    """Get nothing if its expression cannot be evaluated."""
    of_a_group_with_a_filter(judge)
    judge.told(Call("get", NOW), Answer([b"2"]))
    judge.told(Call("get", NOW), Answer(error="Empty"))


def a_filter_that_changes(judge: Judge) -> None:
    """Make a group that exists again, with another filter."""
    of_a_group_with_a_filter(judge)
    made = {"name": "other", "start": "latest", "filter": "!has(headers.kind)"}
    judge.told(Call("create_group", NOW, made), Answer(5))


def dead_and_left_out(judge: Judge) -> None:
    """Find a dead letter of a message that does not match, and that has expired."""
    of_a_group_with_a_filter(judge)
    configured(judge, expired="dead")
    judge.told(Call("put", NOW, {"payload": b"5", "headers": {"kind": "b"}, "ttl": 2}), Answer(5))
    judge.told(Call("dead_count", later(3)), Answer(1))


def gone_though_it_is_kept(judge: Judge) -> None:
    """Read nothing of what retention keeps, though every group has finished it."""
    judge.told(Call("get", NOW), Answer([b"a"]))
    configured(judge, retain_messages=1)
    judge.told(Call("get", NOW), Answer([b"b"]))
    judge.told(Call("read", NOW, {"start": 0}), Answer(([], [(0, 2)], 0)))


def skipped_though_it_is_young(judge: Judge) -> None:
    """Find nothing behind a pass that moves the group on from what is as young as it has to be."""
    judge.told(Call("get", NOW), Answer([b"a"]))
    configured(judge, max_lag_age=3)
    files = [(0, 2**18), (2, 2**18)]
    judge.told(Call("pass_over", later(9), {"before": files, "files": files, "begun": ["default"]}), Answer())
    judge.told(Call("get", later(9)), Answer(error="Empty"))


def skipped_behind_its_lease(judge: Judge) -> None:
    """Do a pass over one of two that are in hand, whose lease is over, while its block is open; the other is done."""
    configured(judge, max_lag_bytes=1)
    judge.told(Call("receive_many", NOW, {"max_messages": 2}), Answer([Seen(0, b"a", 1, 1), Seen(1, b"b", 1, 2)]))
    judge.told(Call("ack", NOW, {"receipts": [1], "is_all": False}), Answer())
    files = [(0, 2**18), (2, 2**18)]
    judge.told(Call("pass_over", later(31), {"before": files, "files": files, "begun": ["default"]}), Answer())
    judge.told(Call("enter", later(31), {"receipts": [1, 2], "is_all": True}), Answer())


def left_without_a_word(judge: Judge) -> None:
    """Leave the block of a message that was skipped, and hear nothing."""
    skipped_behind_its_lease(judge)
    left = {"receipts": [1, 2], "is_all": True, "error": None, "is_shared": False}
    judge.told(Call("leave", later(31), left), Answer())


RETAINED = [gone_though_it_is_kept, skipped_though_it_is_young, left_without_a_word]
FILTERS = [what_does_not_match, nothing_without_an_answer, a_filter_that_changes, dead_and_left_out]
TAKES = [out_of_order, lost, twice, uncounted, stale, given_back_and_passed_over, a_group_that_has_vanished]
PURGES = [purged_in_hand, left_by_a_purge, back_after_a_purge, purged_when_closed]


@pytest.mark.parametrize("wrong", [*TAKES, *PURGES, *SETTINGS, *FILTERS, *RETAINED])
def test_the_judge_refuses_what_the_documentation_does_not_allow(wrong: Callable[[Judge], None]) -> None:
    """A judge that allows everything would prove nothing."""
    judge = Judge()
    put_two(judge)
    with pytest.raises(DisagreementError):
        wrong(judge)


def released_while_the_log_is_read_anew(judge: Judge) -> None:
    """Give back the first of two after an abort that has the log read again, in which only the second is deferred."""
    judge.told(Call("begin", NOW, {"tx": 1}), Answer())
    judge.told(Call("receive", NOW), Answer([Seen(0, b"a", 1, 1)]))
    judge.told(Call("tx_receive", NOW, {"tx": 1}), Answer([Seen(1, b"b", 1, 2)]))
    judge.told(Call("tx_ack", NOW, {"tx": 1, "receipts": [2]}), Answer())
    judge.told(Call("tx_prepare", NOW, {"tx": 1, "id": "id"}), Answer("id"))
    judge.told(Call("tx_abort", NOW, {"tx": 1}), Answer())
    judge.told(Call("release", NOW, {"receipts": [1]}), Answer())
    judge.told(Call("receive", NOW), Answer([Seen(1, b"b", 2, 3)]))


def not_begun(judge: Judge) -> None:
    """Change a setting once a message has expired, which no consumer has seen: the group has not begun."""
    judge.told(Call("put", NOW, {"payload": b"c", "ttl": 2}), Answer(2))
    judge.told(Call("configure", later(3), {"settings": {"maxsize": 9}}), Answer())
    judge.told(Call("list_groups", later(3)), Answer([]))


def all_that_matches(judge: Judge) -> None:
    """Get what matches, and what has no answer; the rest is left out."""
    of_a_group_with_a_filter(judge)
    judge.told(Call("get_many", NOW, {"max_messages": 9}), Answer([b"2", b"4"]))
    judge.told(Call("get", NOW), Answer(error="Empty"))
    judge.told(Call("qsize", NOW), Answer(0))


def passes_over(judge: Judge, seconds: int = 9) -> None:
    """Do a pass over a file that begins with the first message, and the active one that begins with the fourth."""
    configured(judge, max_lag_age=3)
    files = [(0, 2**18), (3, 2**18)]
    told = {"before": files, "files": files, "begun": ["default"]}
    judge.told(Call("pass_over", later(seconds), told), Answer())


def gone_by_age(judge: Judge) -> None:
    """Read nothing of what is older than retention keeps it, by the newest message of the queue."""
    configured(judge, retain_age=3)
    judge.told(Call("get_many", NOW, {"max_messages": 2}), Answer([b"a", b"b"]))
    judge.told(Call("put", later(9), {"payload": b"c"}), Answer(2))
    judge.told(Call("read", later(9), {"start": 0}), Answer(([Seen(2, b"c")], [(0, 2)], 0)))


def skipped_in_front_of_files_that_are_gone(judge: Judge) -> None:
    """Skip what a group has in hand of an old file, as that of the younger message behind it is gone."""
    judge.told(Call("get", NOW), Answer([b"a"]))
    judge.told(Call("receive", NOW), Answer([Seen(1, b"b", 1, 1)]))
    judge.told(Call("put", later(9), {"payload": b"c"}), Answer(2))
    judge.told(Call("get", later(9)), Answer([b"c"]))
    judge.told(Call("put", later(9), {"payload": b"d"}), Answer(3))
    passes_over(judge)
    judge.told(Call("reject", later(9), {"receipts": [1]}), Answer(error="LeaseExpiredError"))


def left_of_what_was_skipped(judge: Judge) -> None:
    """Leave the block of a message that was skipped, and hear it though its lease was over by then."""
    skipped_behind_its_lease(judge)
    judge.told(Call("qsize", later(31)), Answer(0))
    left = {"receipts": [1, 2], "is_all": True, "error": None, "is_shared": False}
    judge.told(Call("leave", later(31), left), Answer(error="LeaseExpiredError"))


def put_into_a_large_spare(judge: Judge) -> None:
    """Put what begins a data file in a spare that is larger than the option."""
    configured(judge, max_bytes=2**27)
    judge.told(Call("put", NOW, {"payload": b"c", "files": [(0, 2**26), (2, 2**27)]}), Answer(2))


def full_till_the_next_pass(judge: Judge) -> None:
    """Find a bound of bytes reached by files that were kept until now, and go with the next pass."""
    finished_messages_that_are_kept_no_more(judge)
    judge.told(Call("full", NOW, {"files": THREE_FILES}), Answer(True))


RIGHT = [all_that_matches, gone_by_age, released_while_the_log_is_read_anew, not_begun, put_into_a_large_spare]
RIGHT += [skipped_in_front_of_files_that_are_gone, left_of_what_was_skipped, full_till_the_next_pass]


@pytest.mark.parametrize("right", RIGHT)
def test_the_judge_allows_what_the_documentation_allows(right: Callable[[Judge], None]) -> None:
    """Histories that it has refused, though the page leaves them open."""
    judge = Judge()
    put_two(judge)
    right(judge)


def test_the_judge_gives_up_rather_than_follow_some_of_the_possible_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right state may be among those that it does not follow: it says so, and refuses nothing any more."""
    monkeypatch.setattr("proof.second_model.judge.STATES_MAX", 1)
    judge = Judge()
    put_two(judge)
    judge.told(Call("put", later(9), {"payload": b"c"}), Answer(2))
    judge.told(Call("put", later(9), {"payload": b"d"}), Answer(3))
    judge.told(Call("get", later(9)), Answer([b"a"]))
    judge.told(Call("get", later(9)), Answer([b"b"]))
    judge.told(Call("put", later(13), {"payload": b"e"}), Answer(4))
    with pytest.raises(TooManyStatesError):
        passes_over(judge, 13)
    for each in (judge, judge.copy()):
        each.told(Call("get", later(13)), Answer([b"none"]))


def test_a_history_with_too_many_possible_states_is_ended_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no disagreement: a run says how many were ended so."""
    monkeypatch.setattr("proof.second_model.judge.STATES_MAX", 1)
    runs = [judged_history(seed, STEPS) for seed in HISTORIES]
    assert [run.trace for run in runs] == [None] * len(runs)
    assert 0 < sum(run.was_cut for run in runs) < len(runs)


@pytest.mark.parametrize("ends", ["commit", "prepare"])
def test_a_full_queue_that_is_shared_refuses_a_transaction_at_once(ends: str) -> None:
    """The clock of the histories stands still, and their one thread is the one that could make room."""
    storage = SimulatedStorage()
    with (
        full_at_once(),
        machine_links(),
        PersistentQueue("/q", mode="shared", storage=storage, clock=FakeClock(), maxsize=1) as queue,
    ):
        queue.put(b"a")
        tx = queue.begin()
        tx.put(b"b")
        began = time.monotonic()
        with pytest.raises(Full):
            getattr(tx, ends)()
        assert time.monotonic() - began < 5  # seconds; its timeout is 60
