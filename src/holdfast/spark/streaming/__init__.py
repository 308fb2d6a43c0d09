"""Streaming: the log of a queue as a stream of Spark."""
