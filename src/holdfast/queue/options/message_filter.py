"""A filter of messages: an expression over what is known without the payload. docs/filters.md. Pure."""

from __future__ import annotations

import datetime as dt
from struct import error as StructError  # noqa: N812  # a class
from typing import Any

from holdfast.persistence.format.constants import (
    TLV,
    TLV_MUST_UNDERSTAND,
    TLV_ORDER_KEY,
    TLV_PRIORITY,
    TLV_USER_HEADER,
)
from holdfast.persistence.format.message_headers import decode_headers
from holdfast.persistence.format.message_options import decode_options
from holdfast.queue.options.filter_expression import EPOCH, compiled, header_names, library

_KNOWN_MAX = 1024
"""Answers that are remembered: messages whose headers have the same values have the same one."""

_KNOWN_BYTES_MAX = 1024
"""Longer headers are not remembered."""

_PANIC = "PanicException"
"""What becomes of a panic in Rust: no ``Exception``, so that few catch it. Here it is a failure as any other."""


class MessageFilter:
    """Decides which messages pass. Not for several threads at once.

    Parameters
    ----------
    expression : str
        As docs/filters.md explains it.

    Attributes
    ----------
    expression : str
        The same.
    failed_count : int
        Messages for which it could not be evaluated; they pass.

    Raises
    ------
    ConfigError
        It cannot be a filter, or the extra ``filter`` is not installed.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.failed_count = 0
        self._counted_end = 0
        self._program = compiled(expression)
        self._message = _Message()
        self._context = library().Context()
        self._context.set_variable_resolver(self._message.value_of)
        self._known: dict[Any, bool | None] = {}
        used = self._program.variables()
        names = header_names(expression)
        self._is_by_headers = names is not None and {"size", "time"}.isdisjoint(used)
        self._places: dict[int | bytes, int] = {name.encode(): place for place, name in enumerate(names or ())}
        for number, name in ((TLV_PRIORITY, "priority"), (TLV_ORDER_KEY, "key")):
            if name in used:
                self._places[number] = len(self._places)

    def passes(self, offset: int, timestamp_ns: int, headers: bytes, size: int) -> bool:
        """Whether a message passes: also if its expression cannot be evaluated, which is counted once.

        Parameters
        ----------
        offset, timestamp_ns : int
            Those of the message.
        headers : bytes
            Its encoded headers, with its options.
        size : int, bytes
            Of its payload.
        """
        values = self._values(headers) if self._is_by_headers else None
        if values is not None and values in self._known:
            answer = self._known[values]
        else:
            self._message.turn_to(timestamp_ns, headers, size)
            answer = self._evaluated()
            if values is not None:
                if len(self._known) == _KNOWN_MAX:
                    self._known.clear()
                self._known[values] = answer
        if answer is None:
            if offset >= self._counted_end:  # messages may be read again
                self._counted_end = offset + 1
                self.failed_count += 1
            return True
        return answer

    def _values(self, headers: bytes) -> tuple[bytes | None, ...] | None:
        """Return all on which the answer for these headers depends; None if they are long, or cannot be read."""
        values: list[bytes | None] = [None] * len(self._places)
        at, places = 0, self._places
        if len(headers) > _KNOWN_BYTES_MAX:
            return None
        try:
            while at < len(headers):
                number, size = TLV.unpack_from(headers, at)
                start = at + TLV.size
                at = start + size
                if number == TLV_USER_HEADER:
                    value_start = start + 1 + headers[start]
                    if (place := places.get(headers[start + 1 : value_start])) is not None:
                        values[place] = headers[value_start:at]
                elif (place := places.get(number)) is not None:
                    values[place] = headers[start:at]
                elif number & TLV_MUST_UNDERSTAND:  # an option, or of a later version
                    decode_headers(headers)
        except (StructError, IndexError, ValueError):
            return None
        return tuple(values) if at == len(headers) else None

    def _evaluated(self) -> bool | None:
        """Return the answer for the message at hand; None if there is none."""
        try:
            answer = self._program.execute(self._context)
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == _PANIC:
                return None  # of the expression: a header that is not there, text compared with a number
            raise
        return answer if isinstance(answer, bool) else None


class _Message:
    """The message at hand: a class of its own, as the library's object that refers to it is never collected."""

    def __init__(self) -> None:
        self._headers = b""
        self._size = self._timestamp_ns = 0
        self._decoded: dict[str, str] | None = None

    def turn_to(self, timestamp_ns: int, headers: bytes, size: int) -> None:
        """Have another message at hand."""
        self._timestamp_ns, self._headers, self._size = timestamp_ns, headers, size
        self._decoded = None

    def value_of(self, name: str) -> Any:
        """Return the value of a name; only those that an expression needs are asked for."""
        if name == "headers":
            if self._decoded is None:
                self._decoded = decode_headers(self._headers)
            return self._decoded
        if name == "size":
            return self._size
        if name == "time":
            return EPOCH + dt.timedelta(microseconds=self._timestamp_ns // 1000)
        options = decode_options(self._headers)
        return options.priority if name == "priority" else options.order_key
