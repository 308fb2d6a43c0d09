"""Writes record batches into directories that are replaced as a whole: Parquet, JSON lines, CSV. docs/arrow.md.

Invariants: a directory under its own name is complete and durable; a failure or a kill leaves the earlier one or none,
and the next attempt removes what is left. Nothing here knows a queue.

May import: persistence/filesystem, and the ground.
"""
