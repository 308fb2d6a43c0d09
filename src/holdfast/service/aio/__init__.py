"""The service for asyncio: the same names, awaited. docs/asyncio.md.

Invariants: the event loop never waits for a disk or a lock, threads do; a cancelled task loses no message: one that was
taken for it is given back.

May import: the rest of the service, queue, and the ground.
"""
