"""Resolves prepared transactions: votes, outcomes, joint commits and reservations.

Invariants: a prepared transaction stays until its outcome is durable; deciding twice changes nothing; two different
outcomes never both count.

May import: engine and everything below it.
"""
