"""Events go through queues while processes are killed, ``python -m examples.demo``; those are in ``processes``."""
