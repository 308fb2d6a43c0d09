"""``holdfast demo``: processes that share one queue are killed at random moments, and their notes are judged.

Invariants: the processes note each answer of the queue in a journal that a kill cannot take back. Only the journals and
the files of the queue are evidence. No process stays behind, and no file unless it is asked for.

May import: public names of ``holdfast`` and the standard library. The command imports this room when it runs.
"""
