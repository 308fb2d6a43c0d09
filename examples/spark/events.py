"""What goes through the queues: earthquakes and flights, as types for the application and as schemas for Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

DATA = Path(__file__).parents[1] / "data"
GROUP = "tables"
"""The consumer group of the drain; the one of the application's workers, ``default``, is not touched by it."""


class Earthquake(msgspec.Struct, frozen=True):
    """One event that was recorded; some are explosions, as ``kind`` says."""

    id: str
    time: datetime
    place: str
    magnitude: float
    kind: str


class Flight(msgspec.Struct, frozen=True):
    """One flight; its id is its place in the file."""

    id: int
    departed: datetime
    delay_minutes: int
    distance_miles: int
    origin: str
    destination: str


@dataclass(frozen=True)
class Stream:
    """One queue, and the table that Spark makes of it.

    Attributes
    ----------
    name : str
        Of the queue, and of the directory of the table.
    type : type
        Of its objects.
    schema : str
        The same for Spark, whose ``from_json`` makes columns of the payloads.
    """

    name: str
    type: type[msgspec.Struct]
    schema: str

    def queue(self, directory: Path) -> Path:
        """Return where the queue is."""
        return queues(directory) / self.name

    def table(self, directory: Path) -> Path:
        """Return where Spark writes."""
        return directory / "tables" / self.name


EARTHQUAKES = Stream(
    "earthquakes", Earthquake, "id STRING, time TIMESTAMP, place STRING, magnitude DOUBLE, kind STRING"
)
FLIGHTS = Stream(
    "flights",
    Flight,
    "id INT, departed TIMESTAMP_NTZ, delay_minutes INT, distance_miles INT, origin STRING, destination STRING",
)
STREAMS = (EARTHQUAKES, FLIGHTS)


def queues(directory: Path) -> Path:
    """Return the directory of the service."""
    return directory / "queues"


def read_events(stream: Stream, flight_count: int, data: Path = DATA) -> list[Any]:
    """Return what goes into a queue: all earthquakes, or so many flights."""
    if stream is FLIGHTS:
        rows = json.loads((data / "flights-20k.json").read_bytes())[:flight_count]
        return [_flight(number, row) for number, row in enumerate(rows)]
    return [_earthquake(feature) for feature in json.loads((data / "earthquakes.json").read_bytes())["features"]]


def _earthquake(feature: dict[str, Any]) -> Earthquake:
    known = feature["properties"]
    time = datetime.fromtimestamp(known["time"] / 1000, UTC)
    return Earthquake(feature["id"], time, known["place"], float(known["mag"]), known["type"])


def _flight(number: int, row: dict[str, Any]) -> Flight:
    departed = datetime.strptime(row["date"], "%Y/%m/%d %H:%M")  # local time: the source says no zone
    return Flight(number, departed, row["delay"], int(row["distance"]), row["origin"], row["destination"])
