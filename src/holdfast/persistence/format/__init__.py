"""The bytes on the disk: structures, encoders and decoders of format version 2. docs/format.md is this room in prose.

Invariants: pure functions and values, no input or output, no clock; what a decoder refuses raises ValueError or
CorruptionError and changes nothing; each encoder is the inverse of its decoder.

May import: the ground (errors, messages).
"""
