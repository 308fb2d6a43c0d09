"""Looks at a queue and administers it: browsing, statistics, dead letters; makes, lists and deletes groups.

Invariants: looking takes no lock of an owner and changes nothing; a verb is done by the owner of what it changes.

May import: engine and everything below it.
"""
