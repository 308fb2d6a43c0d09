"""How fast Holdfast is beside the bare disk; ``make bench``, docs/benchmarks.md.

Benchmarks, ``bench_*.py``: ``queues``, ``service``, ``spark``. Their helpers: ``cases`` is what is measured,
``measuring`` how, and ``processes`` what needs a process of its own.
"""
