"""Queues of other languages, each measured by a small program of its own that is built here."""
