"""``catalog.db``: the contents of the queues, for people and their tools. docs/catalogue.md.

Invariants: it is derived from the queues' files and may be late, broken or deleted; no queue waits for it or reads it;
it changes no file of a queue and takes none of its locks.

May import: ``queue_names`` of the service, options and threads of queue, ``extras`` of serializers, persistence,
and the ground.
"""
