"""A handle in the mode "shared": what it asks the owner of the queue, in this process or another one.

Invariants: a request that may have been done is sent again with the same nonce or delivery number only. A handle never
waits for an owner that is dead.

May import: owner, transport, protocol and everything below them.
"""
