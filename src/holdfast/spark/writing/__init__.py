"""Writing: a DataFrame or a stream put into a queue as one."""
