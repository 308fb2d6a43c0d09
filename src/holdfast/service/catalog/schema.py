"""The tables of ``catalog.db``, for people who open it. docs/catalogue.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlite_utils import Database

SCHEMA_VERSION = 1
"""Stands in ``user_version``. A database with another one is written anew: nothing in it is worth carrying over."""

APPLICATION_ID = 0x48464354
"""Stands in ``application_id``: "HFCT". Tells our database from somebody else's of the same name."""


@dataclass(frozen=True)
class TableSpec:
    """One table.

    Attributes
    ----------
    columns : dict of str to type
        In their order.
    key : tuple of str
        The primary key. Its first column names the queue.
    foreign_keys : tuple
        As sqlite-utils takes them.
    indexes : tuple of tuple of str
        Besides the primary key.
    """

    columns: dict[str, type]
    key: tuple[str, ...]
    foreign_keys: tuple[Any, ...] = (("queue", "queues", "name"),)
    indexes: tuple[tuple[str, ...], ...] = field(default=())


TABLES: dict[str, TableSpec] = {
    "queues": TableSpec(
        {
            "name": str,
            "path": str,
            "queue_id": str,
            "format": int,
            "created": str,
            "next_offset": int,
            "content_types": str,
            "settings": str,
            "problem": str,
        },
        ("name",),
        foreign_keys=(),
    ),
    "data_files": TableSpec(
        {
            "queue": str,
            "sequence": int,
            "file_name": str,
            "first_offset": int,
            "last_offset": int,
            "message_count": int,
            "first_at": str,
            "last_at": str,
            "bytes": int,
            "state": str,
        },
        ("queue", "sequence"),
        indexes=(("queue", "first_offset"), ("last_at",)),
    ),
    "groups": TableSpec(
        {"queue": str, "group_name": str, "depth": int, "dead": int, "floor": int}, ("queue", "group_name")
    ),
    "dead_letters": TableSpec(
        {
            "queue": str,
            "group_name": str,
            "offset": int,
            "reason": str,
            "detail": str,
            "exception": str,
            "deliveries": int,
            "first_failure_at": str,
            "last_failure_at": str,
        },
        ("queue", "group_name", "offset"),
        foreign_keys=(("queue", "queues", "name"), (("queue", "group_name"), "groups", ("queue", "group_name"))),
        indexes=(("reason",), ("last_failure_at",)),
    ),
    "prepared": TableSpec(
        {
            "queue": str,
            "id": str,
            "nonce": str,
            "prepared_at": str,
            "puts": int,
            "acks": int,
            "bytes": int,
            "coordinator": str,
        },
        ("queue", "id", "nonce"),
    ),
    "events": TableSpec(
        {"queue": str, "kind": str, "subject": str, "at": str, "detail": str},
        ("queue", "kind", "subject"),
        indexes=(("kind", "at"),),
    ),
}

VIEWS = {
    "overview": """
        select
            name as queue,
            (select max(depth) from groups where queue = name) as depth,
            (select sum(dead) from groups where queue = name) as dead,
            next_offset,
            (select count(*) from data_files where queue = name) as data_files,
            (select sum(bytes) from data_files where queue = name) as bytes,
            (select min(first_at) from data_files where queue = name) as oldest_at,
            (select max(last_at) from data_files where queue = name) as newest_at,
            (select count(*) from prepared where queue = name) as prepared,
            (select count(*) from events where queue = name and kind = 'damaged') as damaged
        from queues
    """,
    "dead_letter_reasons": """
        select
            queue,
            group_name,
            reason,
            exception,
            count(*) as count,
            min(first_failure_at) as first_failure_at,
            max(last_failure_at) as last_failure_at
        from dead_letters
        group by queue, group_name, reason, exception
    """,
}


def create_schema(db: Database) -> None:
    """Make tables, indexes and views in an empty database; inside the caller's transaction."""
    for name, spec in TABLES.items():
        table = db.table(name)
        table.create(spec.columns, pk=spec.key if len(spec.key) > 1 else spec.key[0], foreign_keys=spec.foreign_keys)
        for columns in spec.indexes:
            table.create_index(columns)
    for name, query in VIEWS.items():
        db.create_view(name, query)
    db.conn.execute(f"pragma application_id = {APPLICATION_ID}")
    db.conn.execute(f"pragma user_version = {SCHEMA_VERSION}")


def drop_everything(db: Database) -> None:
    """Remove all tables and views of any version from a catalogue."""
    for view in db.view_names():
        db.view(view).drop()
    for table in db.table_names():
        if not table.startswith("sqlite_"):
            db.table(table).drop()
