"""Primitives that know no queue: notifiers, group commit, flusher, poller, deadlines, lifecycles, calls in progress.

Invariants: an interruption at any bytecode leaves a primitive usable; a forked child touches nothing of its parent's.

May import: the ground.
"""
