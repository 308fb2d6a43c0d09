"""The owner of a queue in the mode "shared": serves all handles, of its own process and of others.

Invariants: one owner for a directory, by its lock. An answer is sent once it is as durable as the request asks. The
machine knows no socket and waits for no client. A request that comes twice is done once.

May import: transport, protocol, local_engine and everything below them.
"""
