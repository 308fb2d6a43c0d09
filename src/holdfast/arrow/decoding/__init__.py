"""Makes columns of payloads: by content type, encoding and schema version of each message. docs/arrow.md, "Bodies".

Invariants: a message has a body or a reason why not, and never neither. A pickle is read only if a codec of the
application allows it. What a decoder needs travels with it to the task, but for the module of the codec.

May import: serializers, persistence, and the ground.
"""
