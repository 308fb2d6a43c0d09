"""A Spark cluster whose workers do not see the queues: standalone, in mount namespaces, on this machine. Needs root.

``__main__`` puts the events of the example pipeline, runs ``job`` as the driver of each step, kills it, its executors
and its workers in the middle of a batch, and counts. ``machine`` is what a worker runs on. docs/reliability.md.
"""
