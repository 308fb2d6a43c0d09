"""How fast Holdfast is beside the bare disk; ``make bench``, docs/benchmarks.md."""
