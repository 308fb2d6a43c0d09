"""What made the golden directories of ``compat``: each runs once for a format version, and never again."""
