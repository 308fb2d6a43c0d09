"""Reads earthquakes as typed objects through a service, has workers sum them up, and prints a table by magnitude.

What an application writes: a type, a queue, a handler. Among the events are some that nobody can read; they end as dead
letters and hold nothing up.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from holdfast import FlushPolicy, QueueService
from holdfast.cli.demo.evidence import table

UNREADABLE = (b'{"properties": {"mag": "strong"}}', b"no JSON at all")
"""What somebody else puts into the queue by mistake."""

ALERT_MAGNITUDE = 5.0
BATCH = 100


class Properties(msgspec.Struct):
    """What is known of an earthquake; the many fields of the source that are not named here are ignored."""

    place: str
    mag: float | None = None
    felt: int | None = None


class Earthquake(msgspec.Struct):
    """One event as USGS publishes it."""

    id: str
    properties: Properties


@dataclass
class Band:
    """Earthquakes of about one magnitude."""

    count: int = 0
    felt: int = 0
    strongest: float = float("-inf")
    place: str = ""


class Summary:
    """What the handlers have seen, by magnitude."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bands: dict[int | None, Band] = {}

    def add(self, quake: Earthquake) -> None:
        """Count one."""
        magnitude = quake.properties.mag
        with self._lock:
            band = self._bands.setdefault(None if magnitude is None else max(-1, int(magnitude // 1)), Band())
            band.count += 1
            band.felt += quake.properties.felt or 0
            if magnitude is not None and magnitude > band.strongest:
                band.strongest, band.place = magnitude, quake.properties.place

    @property
    def count(self) -> int:
        """Earthquakes so far."""
        return sum(band.count for band in self._bands.values())

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table, the strongest first."""
        ordered = sorted(self._bands.items(), key=lambda item: -99 if item[0] is None else item[0], reverse=True)
        return [(_title(magnitude), f"{band.count:,}", _remark(band)) for magnitude, band in ordered]


def show_typed(directory: Path, events: Sequence[bytes]) -> str:
    """Send the events through a service and print the summary; return what went wrong, or nothing."""
    print(f"\n{len(events):,} earthquakes as typed objects, by magnitude\n", flush=True)
    summary = Summary()
    with QueueService(directory / "service") as service:
        quakes = service.queue("earthquakes", type=Earthquake, flush=FlushPolicy.every(seconds=0.05))
        alerts = service.queue("alerts", type=Earthquake)
        for payload in UNREADABLE:
            quakes.raw.put(payload)
        for start in range(0, len(events), BATCH):
            quakes.put_many([msgspec.convert(json.loads(event), Earthquake) for event in events[start : start + BATCH]])

        @service.consumer("earthquakes", concurrency=4)
        def handle(quake: Earthquake) -> None:
            summary.add(quake)
            if (quake.properties.mag or 0) >= ALERT_MAGNITUDE:
                alerts.put(quake, dedup_id=quake.id)
            if summary.count == len(events):
                service.stop()

        service.run()
        return _report(summary, quakes.dead.list(reason="undecodable"), alerts.stats().depth, events)


def _report(summary: Summary, dead: Sequence[Any], alert_count: int, events: Sequence[bytes]) -> str:
    strong = [event for event in events if (json.loads(event)["properties"]["mag"] or 0) >= ALERT_MAGNITUDE]
    rows = [*summary.rows(), ("total", f"{summary.count:,}", "")]
    rows.append(("alerts", str(alert_count), f"magnitude {ALERT_MAGNITUDE} and above, put into another queue"))
    rows.append(("undecodable", str(len(dead)), "set aside as dead letters, with their bytes"))
    print(table(rows), flush=True)
    wrong = []
    if summary.count != len(events):
        wrong.append(f"{summary.count} of {len(events)} typed events were handled")
    if alert_count != len(strong):
        wrong.append(f"{alert_count} alerts, not {len(strong)}")
    if [letter.payload for letter in dead] != list(UNREADABLE):
        wrong.append("what cannot be read is not among the dead letters")
    return "; ".join(wrong)


def _title(magnitude: int | None) -> str:
    if magnitude is None:
        return "no magnitude"
    return f"magnitude {magnitude} to {magnitude + 1}" if magnitude >= 0 else "magnitude below 0"


def _remark(band: Band) -> str:
    felt = f", felt by {band.felt:,}" if band.felt else ""
    return f"strongest {band.strongest:g}, {band.place}{felt}" if band.place else ""
