"""Handlers of messages: in threads, in processes of their own, and how they stop. docs/workers.md."""
