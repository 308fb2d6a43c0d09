"""The bytes on the disk: format, framing, files, recovery."""
