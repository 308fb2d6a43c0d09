"""How a handle reaches the owner of a side in another process. Temporary: a socket replaces it.

Invariants: a request that got no answer may have been done, and its error tells it.

May import: options, threads, persistence, and the ground.
"""
