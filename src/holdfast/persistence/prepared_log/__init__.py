"""The prepared log: small transactions that wait for their outcome, many in one file. docs/format.md, "Prepared log".

A **segment** is one of its files. An **entry** is one transaction in it: a batch between a frame that begins it and its
commit record. An "ended" frame, in the same segment or in a later one, makes an entry void.

Invariants: no caller is told that an entry is prepared before it is synced; a segment goes durably before a later one.

May import: log and everything below it.
"""
