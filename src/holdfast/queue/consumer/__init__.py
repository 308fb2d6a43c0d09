"""Hands messages out, acknowledges them, requeues them, and makes dead letters: the read side.

Invariants: the take lock guards the messages that are in hand; progress is noted in memory and in the position file in
one order; an acknowledgement returns when the flush policy allows it.

May import: dispatch, producer, verbs, options, threads, persistence, and the ground.
"""
