"""Objects to bytes and back: serializers by content type, schemas and their versions, compression.

Invariants: nothing here knows a queue or a file; what was encoded by an older version decodes through upcasts.

May import: the ground.
"""
