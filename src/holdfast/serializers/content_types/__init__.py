"""A serializer for each content type: JSON, MessagePack, Protocol Buffers, pickle, plain bytes.

Invariants: decoding returns the encoded object or raises a ValueError; an optional library is imported when it is used.

May import: ``serializer``, ``declared_types`` and ``extras`` beside it, and the ground.
"""
