"""Unix sockets between the clients and the owner: their names, who may connect, the server's loop, the client's side.

Invariants: the server never waits for a client, and no client starves another. A connection that is out of step is
closed, never used again. A forked child closes its copies and changes nothing of its parent's.

May import: protocol, threads, persistence and the ground. It knows no queue.
"""
