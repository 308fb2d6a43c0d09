"""Which methods are told of, under which verb, and how their arguments and answers are read."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast import DeadLetters, Delivery, DeliveryBatch, PersistentQueue, Transaction
from holdfast.queue.engine.retention import RetentionPass
from holdfast.queue.inspect.groups import Groups
from proof.second_model import translation
from proof.second_model.history import Seen


@dataclass(frozen=True)
class Reading:
    """A call as it was made."""

    thing: Any
    given: dict[str, Any]
    number: Callable[[Any], int]

    def __getitem__(self, name: str) -> Any:
        """Return an argument, None where it was left out."""
        return self.given.get(name)

    def delivery(self, found: Delivery) -> Seen:
        """Return a message that was handed out."""
        return Seen(found.offset, found.payload, found.delivery_count, self.number(found))


@dataclass(frozen=True)
class Reader:
    """How one method is read; without a name the model has no rule for it."""

    name: str | None
    arguments: Callable[[Reading], dict[str, Any]] = lambda call: {}
    answer: Callable[[Reading, Any], Any] = lambda call, result: None

    def verb(self, call: Reading) -> str | None:
        """Return the verb, as the model calls it."""
        return self.name

    def signature(self, original: Callable[..., Any]) -> inspect.Signature:
        """Return the names of the arguments."""
        return inspect.signature(original)


def plain(call: Reading, result: Any) -> Any:
    """Return an answer as it is."""
    return result


def offsets(call: Reading, result: Any) -> list[int]:
    """Return offsets as a list."""
    return list(result)


def received(call: Reading, result: Any) -> list[Seen]:
    """Return what was handed out."""
    several = result if isinstance(result, DeliveryBatch) else [result]
    return [call.delivery(each) for each in several]


def taking(call: Reading) -> dict[str, Any]:
    """Return how much was asked for."""
    lease = translation.seconds(call["lease_seconds"])
    return {"max_messages": call["max_messages"], "lease_seconds": lease}


def settling(call: Reading) -> dict[str, Any]:
    """Return which deliveries a verb is for, and what else it says."""
    if isinstance(call.thing, DeliveryBatch):
        chosen = call.thing if call["items"] is None else call["items"]
        is_all = call["items"] is None
    else:
        chosen, is_all = [call.thing], False
    said = {"delay": translation.seconds(call["delay"]), "seconds": translation.seconds(call["seconds"])}
    return {
        "receipts": [call.number(each) for each in chosen],
        "is_all": is_all,
        **{name: value for name, value in (*said.items(), ("reason", call["reason"])) if value is not None},
    }


def leaving(call: Reading) -> dict[str, Any]:
    """Return which deliveries a block was for, and how it ended."""
    chosen = call.thing if isinstance(call.thing, DeliveryBatch) else [call.thing]
    error = call["error"]
    return {
        "receipts": [call.number(each) for each in chosen],
        "is_all": isinstance(call.thing, DeliveryBatch),
        "error": None if error is None else str(error) or "-",
    }


def of_transaction(call: Reading) -> dict[str, Any]:
    """Return which transaction it is."""
    return {"tx": call.number(call.thing)}


def putting_inside(call: Reading) -> dict[str, Any]:
    """Return what a transaction puts."""
    payloads = [call["payload"]] if "payload" in call.given else call["payloads"]
    return {"tx": call.number(call.thing), "items": translation.asks(payloads)}


def acknowledging_inside(call: Reading) -> dict[str, Any]:
    """Return what a transaction acknowledges."""
    chosen = [call["items"]] if isinstance(call["items"], Delivery) else call["items"]
    return {"tx": call.number(call.thing), "receipts": [call.number(each) for each in chosen]}


def beginning(call: Reading, result: Any) -> Any:
    """Return nothing: the transaction is an argument by then."""
    call.given["tx"] = call.number(result)


def shown(call: Reading, result: Any) -> list[Seen]:
    """Return what a look has shown."""
    return [translation.message(each) for each in result]


def asked(*names: str) -> Callable[[Reading], dict[str, Any]]:
    """Return what reads arguments as they are."""
    return lambda call: {name: call[name] for name in names if call[name] is not None}


def which(call: Reading) -> dict[str, Any]:
    """Return which dead letters are meant."""
    return {"offsets": translation.offsets_of(call["which"]), "reason": call["reason"]}


def configuring(call: Reading) -> dict[str, Any]:
    """Return which settings are changed."""
    return {"settings": translation.settings(call["settings"] or {}), "reset": list(call["reset"] or ())}


def creating(call: Reading) -> dict[str, Any]:
    """Return how a group begins."""
    return {**seeking(call), "settings": translation.settings(call["settings"] or {}), "filter": call["filter"]}


def seeking(call: Reading) -> dict[str, Any]:
    """Return which group is to begin where."""
    start = call["start"]
    return {"name": call["name"], "start": "earliest" if start is None else translation.start(start)}


def reading(call: Reading) -> dict[str, Any]:
    """Return which part of the log is read."""
    start = call["start"]
    first = "earliest" if start is None else translation.start(start)
    return {"start": first, "stop": translation.start(call["stop"])}


QUEUE = {
    "put": Reader("put", lambda call: {**translation.ask(call.given), **asked("dedup_id")(call)}, plain),
    "put_many": Reader("put_many", lambda call: {"items": translation.asks(call["payloads"])}, offsets),
    "get": Reader("get", taking, lambda call, result: [result]),
    "get_many": Reader("get_many", taking, plain),
    "receive": Reader("receive", taking, received),
    "receive_many": Reader("receive_many", taking, received),
    "peek": Reader("peek", lambda call: {"max_messages": call["max_messages"] or 1}, shown),
    "browse": Reader(
        "browse",
        lambda call: {"state": call["state"] or "ready", "limit": call["limit"] or 100, "after": call["after"]},
        shown,
    ),
    "qsize": Reader("qsize", answer=plain),
    "empty": Reader("empty", answer=plain),
    "full": Reader("full", answer=plain),
    "stats": Reader("stats", answer=lambda call, result: translation.figures(result)),
    "read": Reader("read", reading, lambda call, result: translation.read(result)),
    "pause": Reader("pause", lambda c: {"until": translation.instant_ns(c["until"]), "reason": c["reason"]}),
    "resume": Reader("resume"),
    "purge": Reader("purge", answer=plain),
    "configure": Reader("configure", configuring),
    "compact": Reader("compact"),
    "shutdown": Reader("shutdown", asked("immediate")),
    "close": Reader("close"),
    "begin": Reader("begin", lambda call: call.given, beginning),
    "transaction": Reader("begin", lambda call: call.given, beginning),
    "prepared": Reader(
        "prepared", answer=lambda call, result: [(one.id, one.put_count, one.ack_count) for one in result]
    ),
    "commit_prepared": Reader("commit_prepared", asked("id"), offsets),
    "abort_prepared": Reader("abort_prepared", asked("id")),
    **dict.fromkeys(("put_encoded", "join_transaction", "__iter__"), Reader(None)),
}
TRANSACTION = {
    "put": Reader("tx_put", putting_inside),
    "put_many": Reader("tx_put_many", putting_inside),
    "put_stream": Reader(None),
    "receive": Reader("tx_receive", of_transaction, received),
    "ack": Reader("tx_ack", acknowledging_inside),
    "commit": Reader("tx_commit", of_transaction, offsets),
    "abort": Reader("tx_abort", of_transaction),
    "prepare": Reader("tx_prepare", lambda call: {**of_transaction(call), "id": call["id"]}, plain),
}
VERBS = {name: Reader(name, settling) for name in ("ack", "nack", "reject", "release", "extend")}
BLOCK = {"__enter__": Reader("enter", settling), "__exit__": Reader("leave", leaving)}
DEAD = {
    "list": Reader("dead_list", asked("reason", "limit"), lambda call, result: [translation.letter(o) for o in result]),
    "__len__": Reader("dead_count", answer=plain),
    "retry": Reader("dead_retry", which, plain),
    "discard": Reader("dead_discard", which, plain),
}
GROUPS = {
    "create": Reader("create_group", creating, plain),
    "delete": Reader("delete_group", asked("name")),
    "list": Reader("list_groups", answer=plain),
    "seek": Reader("seek", seeking, lambda call, result: (result.offset, result.is_complete)),
}
METHODS: list[tuple[type, dict[str, Reader]]] = [
    (RetentionPass, {"run": Reader("pass_over")}),
    (PersistentQueue, QUEUE),
    (Transaction, TRANSACTION),
    (Delivery, {**VERBS, **BLOCK, "park": Reader(None)}),
    (DeliveryBatch, {**VERBS, **BLOCK}),
    (DeadLetters, DEAD),
    (Groups, GROUPS),
]
READERS = {(owner, name): reader for owner, methods in METHODS for name, reader in methods.items()}

#: An exception out of a transaction's block; a clean exit is a commit, and told of as one.
FAILING = Reader("tx_fail", lambda call: {**of_transaction(call), "error": str(call["error"]) or "-"})
