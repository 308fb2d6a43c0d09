"""Objects to bytes and back: serializers by content type, schemas and their versions, compression.

Invariants: nothing here knows a queue or a file; messages of an older version decode through upcasts.

May import: the ground.
"""
