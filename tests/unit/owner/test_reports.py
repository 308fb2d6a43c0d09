"""Reports of recoveries that a client asks for."""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.format.report import DAMAGED, Damage, RecoveryReport
from holdfast.queue.owner.reports import DAMAGE_MAX, report_fields, report_of
from holdfast.queue.protocol.frames import FRAME_BYTES_MAX
from holdfast.queue.protocol.messages import Done, decode_reply, encode
from support.owners.served import Served


def damage(number: int) -> Damage:
    """Return damage with as long a reason and a path as there may be."""
    return Damage(Path("/" + "p" * 4000), number, 1, range(number, number + 1), DAMAGED, "r" * 5000)


def test_a_report_comes_back_as_it_was() -> None:
    """Through its encoding."""
    place = Damage(Path("/q/data/1"), 7, 8, range(3, 5), DAMAGED, "torn")
    report = RecoveryReport(False, 1.5, 2, 3, 4, (place,), (place, place))
    reply = decode_reply(encode(Done(report_fields(report))))
    assert isinstance(reply, Done)
    assert report_of(reply.result) == report


def test_a_report_of_much_damage_fits_into_a_frame() -> None:
    """It has the first places of each kind."""
    many = tuple(map(damage, range(2 * DAMAGE_MAX)))
    fields = report_fields(RecoveryReport(damage=many, progress_damage=many))
    assert len(encode(Done(fields))) < FRAME_BYTES_MAX
    assert [each.position for each in report_of(fields).damage] == list(range(DAMAGE_MAX))


def test_an_owner_reports_what_it_has_recovered() -> None:
    """Of the log, and of the group."""
    served = Served()
    served.connect().put(1, b"a")
    client = served.killed().connect()
    report = report_of(client.do("recovery"))
    assert (report.clean, report.damage) == (False, ())
