"""``work``: runs the consumers of a program's service until a signal comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.importing import import_named
from holdfast.cli.log_lines import set_up_logging
from holdfast.cli.opening import json_option
from holdfast.cli.seconds import Seconds

if TYPE_CHECKING:
    from holdfast.service.aio.async_service import AsyncQueueService
    from holdfast.service.queue_service import QueueService


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.option(
    "--processes", type=click.IntRange(min=1), help="Worker processes for all consumers together, instead of threads."
)
@click.option(
    "--grace",
    "grace_seconds",
    type=Seconds(),
    default=15.0,
    show_default=True,
    help="Seconds that running handlers have after SIGINT or SIGTERM; a second signal ends them at once.",
)
@json_option
def work(target: str, processes: int | None, grace_seconds: float, as_json: bool) -> None:
    """Run the consumers of a service, until SIGINT or SIGTERM comes.

    MODULE is imported, with the present directory on the path; SERVICE names a QueueService or an AsyncQueueService in
    it, or a function that makes one. Without --processes each consumer runs as its decorator defines.

    Logs to standard error, with --json as lines of JSON, unless the module has set up logging by itself.
    """
    service = _find_service(target)
    set_up_logging(as_json=as_json)
    from holdfast.service.queue_service import QueueService

    if isinstance(service, QueueService):
        with service:
            service.workers.run(grace_seconds, processes)
        return
    if processes is not None:
        raise click.UsageError(f"--processes is for a QueueService: the handlers of {target} run in one event loop")
    import asyncio

    asyncio.run(_run_async(service, grace_seconds))


async def _run_async(service: AsyncQueueService, grace_seconds: float) -> None:
    async with service:
        await service.run(grace_seconds=grace_seconds)


def _find_service(target: str) -> QueueService | AsyncQueueService:
    """Return the service that ``module:attribute`` names.

    Raises
    ------
    UsageError
        Of click: there is no such module or attribute, or it is something else.
    """
    found: Any = import_named(target, "MODULE:SERVICE", "shop.tasks:service", "QueueService")
    service = found if _is_service(found) or not callable(found) else found()
    if not _is_service(service):
        raise click.UsageError(f"{target} is no QueueService, and makes none: it is {service!r}")
    checked: QueueService | AsyncQueueService = service
    return checked


def _is_service(found: object) -> bool:
    from holdfast.service.aio.async_service import AsyncQueueService
    from holdfast.service.queue_service import QueueService

    return isinstance(found, QueueService | AsyncQueueService)
