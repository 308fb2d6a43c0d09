"""Inspects and administers a queue: browsing, statistics, dead letters; creates, lists and deletes groups.

Invariants: reading takes no lock of an owner and changes nothing; the owner of a side performs the verbs that change
it.

May import: engine and everything below it.
"""
