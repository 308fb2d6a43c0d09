"""One file of frames: a scanner that skips damage, and the batch files of transactions.

Invariants: a frame counts only if its checksum and its salt fit; a scanner reports damage and never raises for it;
a batch file counts as a whole or not at all.

May import: filesystem, format, and the ground.
"""
