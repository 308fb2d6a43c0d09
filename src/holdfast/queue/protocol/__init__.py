"""The language of clients and owner: frames, as bytes and as objects. Pure: no sockets, no threads, no clock.

Invariants: each field of what a peer sent is checked before memory is allocated for it; a frame has a bound; anything
wrong raises ``ProtocolError``, and then the connection has ended.

May import: the ground.
"""
