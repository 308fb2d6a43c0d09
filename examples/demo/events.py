"""What goes through the queue: a week of earthquakes, each as the bytes of one JSON document."""

from __future__ import annotations

import json
from pathlib import Path

EARTHQUAKES = Path(__file__).parents[1] / "data" / "earthquakes.json"


def read_events(count_max: int | None = None) -> list[bytes]:
    """Return the first ``count_max`` events, or all of them."""
    features = json.loads(EARTHQUAKES.read_bytes())["features"]
    return [json.dumps(feature).encode() for feature in features[:count_max]]


def enrich(event: bytes) -> bytes:
    """Return an event with the energy that was set free, by the rule of Gutenberg and Richter."""
    feature = json.loads(event)
    magnitude = feature["properties"]["mag"]
    feature["properties"]["energy_joules"] = None if magnitude is None else round(10 ** (4.8 + 1.5 * magnitude))
    return json.dumps(feature).encode()
