"""The commands: one module for each, or for a few that belong together. docs/cli.md.

Invariants: a command changes a queue through public methods only; standard output is for results, standard error for
messages; each error is one line with advice.

May import: the rest of ``cli`` but ``main``, service, spark, queue, and what these import.
"""
