"""The crash-state explorer: what may be left of a queue at each instant, and whether it recovers.

The model of crashes and the figures: docs/reliability.md.
"""
