"""Owners of shared queues without sockets and threads, and what asks them."""
