"""Optional packages."""

from __future__ import annotations

import json

import pytest

from holdfast import ConfigError
from holdfast.serializers.extras import import_extra


def test_a_package_that_is_there_is_imported() -> None:
    """The module itself."""
    assert import_extra("json", "some", "this") is json


def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    """As the line to type."""
    with pytest.raises(ConfigError, match=r"^this needs .*: pip install 'holdfast\[some\]'$") as caught:
        import_extra("holdfast_no_such_module", "some", "this")
    assert caught.value.extra == "some"
    assert isinstance(caught.value.__cause__, ImportError)
