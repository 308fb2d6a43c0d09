"""The owner serves requests of other processes. Temporary: a socket replaces it.

Invariants: a request is answered after its result is durable; a refusal changes nothing.

May import: prepared, inspect and everything below them.
"""
