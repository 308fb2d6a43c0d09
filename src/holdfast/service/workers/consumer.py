"""Consumers as they are registered: which handler is for which queue, and how it runs. Nothing is open yet."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import ConfigError
from holdfast.queue.options.retry_policy import Backoff, RetryPolicy, retry_policy
from holdfast.serializers.declared_types import classes_of, split, type_name
from holdfast.service.queue_names import check_queue_name

Handler = Callable[..., Any]

Body = TypeVar("Body")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Register(Protocol[Body]):
    """The decorator for a handler whose first parameter takes the objects of the queue."""

    def __call__(
        self, handler: Callable[Concatenate[Body, Parameters], Result], /
    ) -> Callable[Concatenate[Body, Parameters], Result]:
        """Register the handler, and return it."""
        ...


CONSUMER_OPTIONS = ("concurrency", "processes", "retry", "type")
"""What ``service.consumer`` takes beside the settings of the queue."""

_PARAMETERS = ("body", "delivery")


@dataclass(frozen=True)
class Consumer:
    """One handler of one queue.

    Attributes
    ----------
    queue_name : str
        The queue.
    handler : callable
        The program's function.
    concurrency : int
        Threads, or tasks of an asynchronous handler.
    processes : int
        Worker processes; 0: the handler runs in this one.
    retry : RetryPolicy or None
        Back-off instead of the queue's.
    type : object
        The type of the messages, as the program declares it; None: from the annotation of the handler's first
        parameter.
    settings : mapping
        To open the queue with.
    place : str
        The file and line that registers it, for errors.
    takes_delivery : bool
        Whether the handler takes the delivery beside the object.
    is_async : bool
        Whether it has to be awaited.
    """

    queue_name: str
    handler: Handler
    concurrency: int = 1
    processes: int = 0
    retry: RetryPolicy | None = None
    type: Any = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    takes_delivery: bool = False
    is_async: bool = False

    def declared_type(self) -> Any:
        """Return the type of the messages: as declared, else from the handler's first parameter, else None.

        Raises
        ------
        ConfigError
            The annotation names what cannot be found.
        """
        if self.type is not None:
            return self.type
        try:
            first = next(iter(inspect.signature(self.handler, eval_str=True).parameters.values()))
        except Exception as error:  # an annotation is code of the program's
            raise ConfigError(
                f"the annotations of {name_of(self.handler)} cannot be resolved ({error}): pass type= to the consumer"
            ) from error
        return None if first.annotation in (inspect.Parameter.empty, Any) else first.annotation


def make_consumer(
    queue_name: str,
    handler: Handler,
    *,
    concurrency: int,
    processes: int,
    retry: Backoff | Sequence[float] | None,
    type: Any,
    settings: Mapping[str, Any],
    place: str = "",
) -> Consumer:
    """Return a consumer; raises ConfigError if it cannot work."""
    _check_count("concurrency", concurrency, least=1)
    _check_count("processes", processes, least=0)
    if processes and concurrency > 1:
        raise ConfigError("a consumer has concurrency threads or worker processes, not both: leave out one of them")
    if not callable(handler):
        raise ConfigError(f"a handler is a function, not {handler!r}")
    functions = (handler, handler.__class__.__call__)  # an object that can be called is a handler too
    if any(map(inspect.isgeneratorfunction, functions)) or any(map(inspect.isasyncgenfunction, functions)):
        raise ConfigError(f"{name_of(handler)} yields: a handler does its work when it is called")
    return Consumer(
        queue_name,
        handler,
        concurrency,
        processes,
        _own_backoff(retry),
        type,
        settings,
        place,
        _takes_delivery(handler),
        is_async=any(map(inspect.iscoroutinefunction, functions)),
    )


def check_annotation(handler: Handler, queue_name: str, types: Sequence[Any]) -> None:
    """Refuse a handler whose first parameter is annotated with another type than the queue's; raises ConfigError.

    An annotation that cannot be resolved, or that is no type that a queue may have, says nothing.
    """
    try:
        first = next(iter(inspect.signature(handler, eval_str=True).parameters.values()))
        wanted = [Any] if first.annotation is first.empty else split(first.annotation)
        unfit = [each for each in types if not any(_accepts(kind, each) for kind in wanted)]
    except Exception:  # an annotation is code of the program's
        return
    if unfit:
        takes, holds = (" or ".join(map(type_name, each)) for each in (wanted, types))
        raise ConfigError(
            f"{name_of(handler)} takes {takes}, and queue {queue_name!r} holds {holds}: annotate the handler with that "
            "type, or register it for another queue"
        )


def _accepts(annotated: Any, declared: Any) -> bool:
    if Any in (annotated, declared) or annotated == declared:
        return True
    return all(issubclass(kind, classes_of(annotated)) for kind in classes_of(declared)[:1])


def name_of_queue(queue: Any, kind: type[Any]) -> str:
    """Return the name of a queue that a program names, or opened; raises ConfigError for anything else."""
    if isinstance(queue, kind):
        name: str = queue.name
        return name
    if not isinstance(queue, str):
        found = "the handler itself" if callable(queue) else repr(queue)
        raise ConfigError(f"write @service.consumer(queue), with the queue or its name in parentheses, not {found}")
    return check_queue_name(queue)


def name_of(handler: Handler) -> str:
    """Return what people call a handler."""
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(handler)


def _check_count(name: str, value: object, *, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is a number from {least} on, not {value!r}")


def _own_backoff(retry: Backoff | Sequence[float] | None) -> RetryPolicy | None:
    if retry is None:
        return None
    try:
        return retry_policy(None, retry, 1, 1, "drop")  # only its back-off counts
    except ConfigError as error:
        raise ConfigError(str(error).replace("backoff", "retry", 1)) from None


def _takes_delivery(handler: Handler) -> bool:
    """Whether there is a second parameter to be filled in."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [each for each in parameters if each.kind in kinds]
    required = [each for each in positional if each.default is inspect.Parameter.empty]
    takes_any = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
    wanted_by_name = [
        each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is each.empty
    ]
    if len(required) > len(_PARAMETERS) or wanted_by_name or not (positional or takes_any):
        raise ConfigError(
            f"{name_of(handler)}{inspect.signature(handler)} does not fit: a handler takes the message's object, or "
            "the object and the delivery"
        )
    return len(required) == len(_PARAMETERS)
