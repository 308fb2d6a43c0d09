"""Opened by applications: many queues in one directory, typed messages, transactions, failover. docs/service.md.

Rooms: ``workers/`` runs handlers, ``aio/`` is the same service for asyncio, ``configuration/`` reads what operators
set, ``catalog/`` writes ``catalog.db``.

Invariants: a service opens each queue once; a message that cannot be decoded becomes a dead letter and never reaches a
handler; the promises of a queue stay the same.

May import: queue, persistence, serializers, and the ground. ``aio`` is on top; ``queue_service`` uses the other rooms.
"""
