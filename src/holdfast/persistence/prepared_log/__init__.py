"""The prepared log: small transactions that wait for their outcome, many in one file. docs/format.md, "Prepared log".

A **segment** is one of its files. An **entry** is one transaction in it: a batch between a frame that begins it and its
commit record. An "ended" frame, in the same segment or in a later one, makes an entry void.

Invariants: a segment outlives durably those that it speaks of; nothing is appended to a segment of an earlier opening.

May import: log, segment and everything below them.
"""
