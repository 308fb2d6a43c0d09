"""Votes whose puts may be among the lost bytes of a segment stay in doubt, and only those."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import CorruptionError, PersistentQueue, TransactionStateError
from holdfast.persistence.prepared_log.entry import Entry
from support.builders.handles import handle_of, log_of, segments
from support.builders.transactions import ORDERS, cut_power, kill, open_queue, prepare, prepared_ids, waiting
from support.storages.simulated_storage import SimulatedStorage


def damaged(storage: SimulatedStorage) -> SimulatedStorage:
    """Return a disk with a segment that has lost the frame which ended "gone"; "vote" voted, and put into it."""
    queue = open_queue(storage)
    queue.put_many([b"one", b"two"])
    prepare(queue, "both", "vote")
    prepare(queue, "puts", "gone")
    queue.abort_prepared("gone")
    prepare(queue, "puts", "behind")
    vote, behind = (log_of(queue).find(name) for name in ("vote", "behind"))
    assert isinstance(vote, Entry)
    assert isinstance(behind, Entry)
    left = kill(storage, queue)
    with left.open(behind.path) as file:
        for position in (behind.position - 5, vote.position + 40, vote.end - 40):
            (byte,) = file.read_at(1, position)
            file.write_at([bytes([byte ^ 1])], position)
        file.sync()
    return left


def abort_damaged(queue: PersistentQueue) -> list[str]:
    """Abort what is listed as damaged, as the documentation says; return the ids."""
    ids = [each.id for each in queue.prepared() if each.damage]
    for each in ids:
        queue.abort_prepared(each)
    return ids


def test_a_transaction_that_is_just_being_prepared_is_not_damaged(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has voted, and its puts come: who aborts what is damaged does not abort it."""
    with open_queue(damaged(storage)) as queue:
        log = log_of(queue)
        append = log.append
        seen: list[Any] = []

        def look() -> None:
            seen.append(abort_damaged(queue))
            with pytest.raises(TransactionStateError, match="just now"):
                queue.abort_prepared("new")

        def append_beside_another_thread(*arguments: Any) -> Any:
            other = threading.Thread(target=look)
            other.start()
            other.join(10)
            return append(*arguments)

        monkeypatch.setattr(log, "append", append_beside_another_thread)
        tx = prepare(queue, "both", "new")
        assert seen == [["vote", "behind"]]
        assert prepared_ids(queue) == ["new"]
        assert len(tx.commit()) == 1
        assert waiting(queue) == [b"one", b"new"]


def test_what_verifies_beside_damage_can_be_committed_all_the_same(storage: SimulatedStorage) -> None:
    """Else its only copy would go with the abort. It takes ``force``, because it may have been decided before."""
    with open_queue(damaged(storage)) as queue:
        vote, behind = queue.prepared()
        assert [(each.id, each.put_count, each.size_bytes > 0) for each in (vote, behind)] == [
            ("vote", 0, False),
            ("behind", 1, True),
        ]
        assert "commit it with force=True" in behind.damage[0].reason
        with pytest.raises(CorruptionError, match="behind waits beside damage"):
            queue.commit_prepared("behind")
        with pytest.raises(CorruptionError, match="vote is damaged"):
            queue.commit_prepared("vote", force=True)
        put = queue.commit_prepared("behind", force=True)
        assert (len(put), queue.commit_prepared("behind")) == (1, put)
        left = kill(handle_of(queue).storage, queue)
    with open_queue(left) as again:
        assert prepared_ids(again) == ["vote"]
        again.abort_prepared("vote")
        assert waiting(again) == [b"one", b"two", b"new"]


def test_a_damaged_segment_survives_a_crash_at_any_instant_of_its_quarantine(storage: SimulatedStorage) -> None:
    """It has either name: what is lost in it may be the only copy of a payment."""
    left = damaged(storage)
    segment, quarantined = (ORDERS / "prepared" / f"0000000001.log{ending}" for ending in ("", ".damaged"))
    left.replay_from_here()
    with open_queue(left) as queue:
        abort_damaged(queue)
    names = set()
    for crash in left.prefix_crashes():
        tree = crash.storage.tree()
        (name,) = {segment, quarantined} & tree.keys()
        assert b"new" in (tree[name] or b"")
        names.add(name)
        with open_queue(crash.storage) as again:
            abort_damaged(again)
            assert waiting(again) == [b"one", b"two"]
        assert quarantined in crash.storage.tree()
    assert names == {segment, quarantined}


def test_segments_go_again_once_no_vote_needs_them(storage: SimulatedStorage) -> None:
    """Else a queue would keep all that follow, until it is opened anew. The damaged one is quarantined."""
    with open_queue(damaged(storage)) as queue:
        assert [each.path.name for each in queue.recovery.damage] == ["0000000001.log"] * 2
        assert segments(queue) == [1]
        assert abort_damaged(queue) == ["vote", "behind"]
        assert segments(queue)[0] > 1
        assert log_of(queue).waiting().lost_of(bytes(16)) == ()
        left = cut_power(handle_of(queue).storage, queue)
    with open_queue(left) as again:
        assert "0000000001.log.damaged" in left.list(ORDERS / "prepared")
        assert (again.recovery.damage, prepared_ids(again)) == ((), [])
        assert waiting(again) == [b"one", b"two"]
