"""Optional packages."""

from __future__ import annotations

import json
import sys

import pytest

from holdfast import ConfigError
from holdfast.serializers.extras import import_extra, is_installed, require_extra


def test_a_package_that_is_there_is_imported() -> None:
    """The module itself."""
    assert import_extra("json", "some", "this") is json


def test_a_package_that_is_missing_is_named_with_its_extra() -> None:
    """As the line to type."""
    with pytest.raises(ConfigError, match=r"^this needs .*: pip install 'holdfast\[some\]'$") as caught:
        import_extra("holdfast_no_such_module", "some", "this")
    assert caught.value.extra == "some"
    assert isinstance(caught.value.__cause__, ImportError)


def test_whether_a_package_is_there_is_known_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing may take long, and may not be wanted at all."""
    monkeypatch.delitem(sys.modules, "this", raising=False)
    assert is_installed("this")  # the module of the standard library that would print a poem
    assert "this" not in sys.modules
    assert not is_installed("holdfast_no_such_module")
    require_extra("this", "some", "that")
    with pytest.raises(ConfigError, match=r"^that needs .*: pip install 'holdfast\[some\]'$") as caught:
        require_extra("holdfast_no_such_module", "some", "that")
    assert caught.value.extra == "some"
