"""The bytes on the disk: structures, encoders and decoders of format version 2. docs/format.md describes them.

Invariants: pure functions and values, no input or output, no clock; a decoder refuses bytes with ValueError or
CorruptionError and changes nothing; each encoder is the inverse of its decoder.

May import: the ground (errors, messages).
"""
