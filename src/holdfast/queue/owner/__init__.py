"""The owner of a queue in the mode "shared": serves all handles, of its own process and of others.

Invariants: one owner for a directory, by its lock; an answer is sent only once it is as durable as the request asks;
the machine knows no socket and waits for no client; a request that comes twice is done once.

May import: transport, protocol, transactions, engine and everything below them.
"""
