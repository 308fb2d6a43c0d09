"""Prototypes that are measured and not delivered, each for a record of a decision; and profiles of the benchmarks."""
