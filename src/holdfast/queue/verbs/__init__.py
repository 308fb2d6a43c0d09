"""The verbs on a consumer group that have a name: those that operators use, and those on votes; and the log of them.

Invariants: each may be done twice. What an operator did is logged once, by the process that did it.

May import: options, threads, persistence, and the ground.
"""
