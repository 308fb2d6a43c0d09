"""Many data files as one log: its writer, its readers, the high watermark, and commit records that are still pending.

Invariants: the log writer's caller holds the append lock; readers take no lock and never see past the high watermark;
a data file that is not the last one is sealed and never changes; offsets are never given twice.

May import: index, exchange, segment, filesystem, format, and the ground.
"""
