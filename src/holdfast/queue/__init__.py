"""Coordination: the two sides of a queue, leases, groups. Bytes only."""
