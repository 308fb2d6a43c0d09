"""The dispatch of messages to a consumer group: the log in order, deferred messages, and deliveries with their leases.

Invariants: the caller holds the take lock; a message is handed out to one consumer at a time; a message that was read
is kept as a reference, without its payload.

May import: options, threads, persistence, and the ground.
"""
