"""Primitives that know no queue: notifiers, group commit, the flusher, the poller, deadlines, and lifecycles.

Invariants: an interruption at any bytecode leaves a primitive usable; a forked child touches nothing of its parent's.

May import: the ground.
"""
