"""Whatever a setting may be reads back from a document as it was; everything else is refused before it is stored."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast import Backoff, ConfigError, FlushPolicy
from holdfast.queue.options.settings import DEFAULTS, GROUP_SETTINGS, QUEUE_SETTINGS, checked, read_stored, stored

numbers = st.one_of(st.booleans(), st.none(), st.integers(-1, 2**40), st.floats(-1, 1e9), st.just(float("inf")))
times = st.one_of(numbers, st.timedeltas(timedelta(0), timedelta(days=9)))
waits = st.one_of(
    st.lists(numbers, max_size=3),
    st.builds(Backoff, st.sampled_from([0, 1, 2.5, True]), st.sampled_from([3, 4.5]), st.sampled_from([True, 1])),
)
policies = st.one_of(
    st.sampled_from([FlushPolicy.never(), FlushPolicy.every()]), st.builds(FlushPolicy, numbers, numbers)
)
values = {"flush": policies, "backoff": waits, "expired": st.sampled_from(["drop", "dead", "no", 1])}


@given(st.fixed_dictionaries({}, optional={name: values.get(name, times) for name in DEFAULTS}))
def test_what_a_setting_may_be_reads_back_as_it_was(settings: dict[str, Any]) -> None:
    """Also where Python takes more for a number than JSON does."""
    try:
        known = checked(settings)
    except ConfigError:
        return
    document = {**stored(known, QUEUE_SETTINGS), **stored(known, GROUP_SETTINGS)}
    assert read_stored(json.loads(json.dumps(document)), "queue.json") == known


@given(st.sampled_from(sorted(DEFAULTS)), st.data())
def test_each_setting_by_itself_reads_back_as_it_was(name: str, data: st.DataObject) -> None:
    """One that is refused does not hide the others."""
    test_what_a_setting_may_be_reads_back_as_it_was.hypothesis.inner_test({name: data.draw(values.get(name, times))})
