"""Indexes, which find messages without reading them: whether any has a priority, and which ids were put.

Invariants: an index is derived from the log and may be lost; it never denies a message that is there.

May import: filesystem, format, and the ground.
"""
