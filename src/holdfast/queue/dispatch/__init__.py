"""What a consumer group takes next: the log in order, and what is deferred by delay, priority, order key or retry.

Invariants: the caller holds the take lock; a message is handed out to one consumer at a time; what was read is kept
as a reference, not as a payload.

May import: options, threads, persistence, and the ground.
"""
