"""What recovery says it did, and which damage says nothing new."""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.format.report import DAMAGED, Damage, RecoveryReport

DATA, OTHER = Path("/queue/data/1.data"), Path("/queue/data/2.data")


def damage(offsets: range = range(0), path: Path = DATA, position: int = 100) -> Damage:
    """Return damage that lost these."""
    return Damage(path, position, 10, offsets, DAMAGED, "why")


def test_damage_covers_what_lost_no_other_messages() -> None:
    """Wherever it was found: one look may meet a missing file where another meets its end."""
    wide = damage(range(3, 9))
    assert wide.covers(damage(range(3, 9), OTHER, 5))
    assert wide.covers(damage(range(4, 8)))
    assert not wide.covers(damage(range(2, 5)))
    assert not wide.covers(damage(range(8, 10)))


def test_damage_without_a_loss_is_covered_by_what_stands_at_its_place() -> None:
    """Else it says something new."""
    assert damage(range(3, 9)).covers(damage())
    assert not damage(range(3, 9)).covers(damage(path=OTHER))
    assert not damage(range(3, 9)).covers(damage(position=101))


def test_a_recovery_that_met_nothing_is_clean_in_one_word() -> None:
    """Any other one says what it did, with its damage line by line."""
    assert str(RecoveryReport()) == "clean"
    told = str(RecoveryReport(clean=False, recovered_count=2, torn_bytes=7, damage=(damage(range(3, 9)),)))
    assert told.splitlines()[0].startswith("recovered 2 messages")
    assert "torn tail of 7 bytes, lost 6 messages" in told
    assert "offsets 3..8 lost" in told.splitlines()[1]
    assert str(RecoveryReport(progress_damage=(damage(),))) != "clean"
