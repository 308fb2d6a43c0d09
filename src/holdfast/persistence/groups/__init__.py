"""Consumer groups on disk: progress and votes in position files, pauses, notes on dead letters, and reclaiming.

Invariants: a position file has one writer, the owner of the group's lock; progress only grows, so reading a file twice
changes nothing; a data file is retired only when every group has finished it.

May import: log and everything below it.
"""
