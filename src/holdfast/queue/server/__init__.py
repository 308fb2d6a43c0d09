"""The owner serves what other processes ask. Temporary: a socket replaces it.

Invariants: a request is answered after what it asked for is durable; a refusal changes nothing.

May import: prepared, inspect and everything below them.
"""
