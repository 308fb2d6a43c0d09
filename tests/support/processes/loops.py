"""Tests of coroutines: each in an event loop of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

Arguments = ParamSpec("Arguments")

_TEST_SECONDS = 60.0


def in_a_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """Run a test that is a coroutine function; one that hangs fails, and says where."""

    @functools.wraps(test)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(_TEST_SECONDS):
                await test(*arguments, **named)

        asyncio.run(limited())

    return run


async def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something that a thread or another task does."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.001)


async def turns(count: int = 5) -> None:
    """Let other tasks have their turn."""
    for _ in range(count):
        await asyncio.sleep(0)
