"""Unix sockets between the clients and the owner: their names, who may connect, the server's loop, the client's side.

Invariants: only ``endpoint.py`` makes sockets that have names, and touches their files. The server never waits for a
client, and no client starves another. A connection that is out of step is closed, never used again; one to a process of
another user never is used. A forked child closes its copies and changes nothing of its parent's.

May import: protocol, threads, and the ground. It knows no queue.
"""
