"""The options that operators set for queues: ``holdfast.toml`` and environment variables. docs/configuration.md.

Invariants: all of it is read and checked when the service is opened; an error names the file, the line and the key; an
operator cannot set what only the program knows, such as types, serializers or pickle.

May import: ``queue_names`` of the service, options of queue, persistence, and the ground.
"""
