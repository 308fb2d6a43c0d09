"""Filters as such: what an expression may be, what it says of a message, and what it costs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.persistence.format.constants import TLV, TLV_MUST_UNDERSTAND, TLV_USER_HEADER
from holdfast.persistence.format.message_headers import encode_headers
from holdfast.persistence.format.message_options import MessageOptions
from holdfast.queue.options import filter_expression
from holdfast.queue.options.filter_expression import check_filter, header_names
from holdfast.queue.options.message_filter import MessageFilter
from support.builders.log_parts import with_options

DAY_2026_NS = 1_767_225_600 * 10**9
"""2026-01-01 in UTC."""


def encoded(headers: dict[str, str] | None = None, **options: Any) -> bytes:
    """Return headers as the log has them."""
    return with_options(MessageOptions(**options), encode_headers(headers or {}))


def passes(expression: str, headers: bytes = b"", *, timestamp_ns: int = DAY_2026_NS, size: int = 10) -> bool:
    """Whether a message passes, twice: the second answer may be one that was remembered."""
    message_filter = MessageFilter(check_filter(expression))
    first = message_filter.passes(0, timestamp_ns, headers, size)
    assert message_filter.passes(1, timestamp_ns, headers, size) == first
    assert message_filter.failed_count == 0
    return first


@pytest.mark.extra("filter")
class TestAnswers:
    """What an expression says of a message."""

    @pytest.mark.parametrize(
        ("expression", "expected"),
        [
            ("'kind' in headers", True),
            ("has(headers.kind)", True),
            ("has(headers.other)", False),
            ("headers['kind'] == 'paid'", True),
            ('headers["kind"] != "paid"', False),
            ("headers.kind.matches('^p.*d$')", True),
            ("headers.kind.startsWith('pa') && headers.kind.endsWith('x')", False),
            ("!('other' in headers) || priority > 9", True),
            ("priority == 7 && key == 'eu-1'", True),
            ("key.matches(r'^eu-\\d+$')", True),
            ("key in ['eu-1', 'eu-2']", True),
            ("priority > 8 ? false : size(headers) == 2", True),
            ("size < 11 && size >= 10", True),
            ("size(key) == 4", True),
            ("time >= timestamp('2026-01-01T00:00:00Z')", True),
            ("time < timestamp('2026-01-01T00:00:00Z')", False),
        ],
    )
    def test_an_expression_is_about_headers_key_priority_size_and_time(self, expression: str, expected: bool) -> None:
        """Presence, equality, patterns, and, or, not; numbers and times are compared."""
        headers = encoded({"kind": "paid", "id": "17"}, priority=7, order_key="eu-1", expires_ns=5)
        assert passes(expression, headers) is expected

    def test_a_message_without_headers_has_none_of_anything(self) -> None:
        """An empty key, priority 0."""
        assert passes("key == '' && priority == 0 && size(headers) == 0")

    @pytest.mark.parametrize("expression", ["headers['kind'] == 'a'", "headers['kind'] == 'a' || size > 100"])
    def test_a_message_that_an_expression_cannot_judge_passes_and_counts_once(self, expression: str) -> None:
        """A header that is not there; also when it is read again, and when other messages were remembered."""
        message_filter = MessageFilter(check_filter(expression))
        assert [message_filter.passes(each, 0, b"", 1) for each in (3, 4, 3, 4, 5)] == [True] * 5
        assert message_filter.failed_count == 3
        assert not message_filter.passes(6, 0, encoded({"kind": "b"}), 1)

    def test_an_answer_that_is_neither_true_nor_false_is_none(self) -> None:
        """As of an expression that an earlier version has stored."""
        message_filter = MessageFilter("headers['kind']")
        assert message_filter.passes(0, 0, encoded({"kind": "b"}), 1)
        assert message_filter.failed_count == 1

    def test_a_panic_of_the_library_is_a_failure_as_any_other(self) -> None:
        """It is no Exception; an interruption is passed on."""

        class PanicException(BaseException):  # as PyO3 calls it
            pass

        class Program:
            def __init__(self, error: BaseException) -> None:
                self.error = error

            def execute(self, context: object) -> None:
                raise self.error

        message_filter: Any = MessageFilter("size > 1")
        message_filter._program = Program(PanicException())
        assert message_filter.passes(0, 0, b"", 1)
        assert message_filter.failed_count == 1
        message_filter._program = Program(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            message_filter.passes(1, 0, b"", 1)

    def test_many_different_headers_are_judged_each_by_itself(self) -> None:
        """More than are remembered, and longer ones than are."""
        message_filter = MessageFilter("headers.id.endsWith('7')")
        for number in range(3000):
            name = str(number) if number % 2 else str(number).zfill(2000)
            assert message_filter.passes(number, 0, encoded({"id": name, "other": "x"}), 1) == (number % 10 == 7)

    @pytest.mark.parametrize(
        "headers",
        [
            b"\x01",
            TLV.pack(TLV_USER_HEADER, 0),
            TLV.pack(TLV_USER_HEADER, 9) + b"\x04kind",
            TLV.pack(TLV_USER_HEADER, 3) + b"\x09ab",
            TLV.pack(TLV_MUST_UNDERSTAND | 99, 1) + b"x" + encode_headers({"kind": "other"}),
            TLV.pack(TLV_USER_HEADER, 6) + b"\x04kind\xff",
        ],
    )
    def test_headers_that_cannot_be_read_let_a_message_pass(self, headers: bytes) -> None:
        """Whether they end too soon, or have what a later version needs."""
        message_filter = MessageFilter("has(headers.kind) && headers.kind == 'paid'")
        assert message_filter.passes(0, 0, headers, 1)
        assert message_filter.failed_count == 1

    def test_unknown_headers_that_need_not_be_understood_change_nothing(self) -> None:
        """Those of a later version."""
        assert passes("headers.kind == 'paid'", TLV.pack(99, 1) + b"x" + encode_headers({"kind": "paid"}))


@pytest.mark.extra("filter")
class TestExpressions:
    """What an expression may be."""

    @pytest.mark.parametrize(
        ("expression", "why"),
        [
            (7, "a filter is a text, not 7"),
            ("", "Syntax error"),
            ("size >", "Syntax error"),
            ("x == 1", "there is no 'x': it may name headers, key, priority, size, time"),
            ("now() > time", "it may not use 'now'"),
            ("1 + 1 == 2", "it may not use '\\+'"),
            ("headers.all(key, key == 'a')", "it may not use 'not_strictly_false'"),
            ("headers.exists(size, size == 'a')", "it may not use 'not_strictly_false'"),
            ("headers.exists_one(size, true)", "it may not use '\\+'"),
            ("size(headers.map(key, key)) > 1", "it may not use '\\+'"),
            ("size(headers.filter(key, true)) > 1", "it may not use '\\+'"),
            ("headers.all(key, size, true)", "it may not use 'all'"),
            ("key", "true or false for no message: it is ''"),
            ("priority > 'a'", "No such overload"),
            ("headers['a'] > 3", "No such overload"),
            ("timestamp('then') < time", "timestamp"),
            ("key.matches('(')", "'\\(' is no pattern"),
            ("key.matches(headers.pattern)", "matches takes a pattern that is a text"),
            ("matches(key, 'a')", "matches takes a pattern that is a text"),
            ("true // 'a'", "no comment"),
            ("key == '''a'''", "three quotes"),
            ("(" * 21 + "true" + ")" * 21, "brackets are at most 20 deep"),
            ("size > " + "1" * 1000, "1007 characters; at most 1000"),
        ],
    )
    def test_what_cannot_be_a_filter_is_refused_in_one_line(self, expression: Any, why: str) -> None:
        """Names and functions there are not, loops, clocks, texts instead of conditions, what is too deep or long."""
        with pytest.raises(ConfigError, match=why) as raised:
            check_filter(expression)
        assert "\n" not in str(raised.value)

    def test_a_pattern_that_costs_too_much_is_refused_with_what_to_say_instead(self) -> None:
        """It would be compiled for each message."""
        with pytest.raises(ConfigError, match=r"takes \d+ ms for one message, at most 2: say \[0-9A-Za-z_\]"):
            check_filter(r"key.matches(r'\w{100}')")
        check_filter("key.matches('[0-9A-Za-z_]{100}')")

    def test_a_pattern_that_others_backtrack_over_takes_no_time(self) -> None:
        """Patterns are matched in a time that follows the length of the text."""
        message_filter = MessageFilter(check_filter("headers.a.matches('^(a+)+$')"))
        started = time.thread_time()
        assert not message_filter.passes(0, 0, encoded({"a": "a" * 10_000 + "b"}), 1)
        assert time.thread_time() - started < 1

    def test_brackets_and_quotes_in_texts_are_no_brackets_and_quotes(self) -> None:
        """Escaped and raw ones, too."""
        assert passes(f"key != '{'(' * 30}' && key != \"it's\" && key != 'it\\'s' && key != r'\\'")

    @pytest.mark.parametrize(
        ("expression", "names"),
        [
            ("'kind' in headers && headers['kind'] == 'paid'", ["kind"]),
            ('has(headers.a) && headers["b"].size() > 1', ["a", "b"]),
            ("priority > 3", []),
            ("size(headers) > 1", None),
            ("headers.size() > 1", None),
            ("headers[key] == 'a'", None),
            ("key in headers", None),
            ("headers['a'] == 'headers'", None),
            ("headers['\\x61'] == 'b'", None),
        ],
    )
    def test_the_headers_on_which_an_answer_depends_are_known_or_all_of_them(
        self, expression: str, names: list[str] | None
    ) -> None:
        """Answers are remembered by the values of those."""
        assert header_names(expression) == names


def test_a_process_without_the_library_says_what_to_install(no_library: None) -> None:
    """For an expression that is made, and for one that is stored."""
    for make in (check_filter, MessageFilter):
        with pytest.raises(ConfigError, match=r"pip install 'holdfast\[filter\]'") as raised:
            make("true")
        assert raised.value.extra == "filter"


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no package for expressions."""

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(filter_expression, "import_module", missing)
