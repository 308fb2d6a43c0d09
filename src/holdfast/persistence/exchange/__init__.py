"""Requests between processes: files in ``requests/`` and mailboxes for the answers. Temporary: a socket replaces it.

Invariants: one rename or removal decides who has a request; an answer is written once.

May import: segment, filesystem, format, and the ground.
"""
