"""Owners of a shared queue that die before any storage operation, and clients that live on and ask their successors.

Every round of a random history is one sweep: the owner is killed, and the power is taken, behind each operation of it.
"""
