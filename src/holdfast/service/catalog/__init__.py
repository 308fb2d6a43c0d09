"""``catalog.db``: what the queues hold, for people and their tools. docs/catalogue.md."""
