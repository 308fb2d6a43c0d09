"""Short ways to a queue, a file or a clock that a test begins with."""
