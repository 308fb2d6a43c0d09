"""The options of callers: options of opening and of a put, retry policies, and why a delivery failed.

Invariants: values that cannot work are refused here, before anything is changed; nothing here knows a file.

May import: persistence, and the ground.
"""
