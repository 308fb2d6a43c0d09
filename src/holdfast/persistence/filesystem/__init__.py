"""The storage port, and the modules built on it alone: locks, durable names and documents, the layout of a directory.

Invariants: ``storage.py`` is the only module that calls the operating system's file functions, so tests can stand in
for the disk; a name is durable only once its directory was synced; a poisoned file is never written again.

May import: format, and the ground.
"""
