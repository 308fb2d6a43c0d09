"""Runs of calls over queues: beside a model, over a storage that records, or in a process that is killed.

A workload does and notes; a model or an oracle of ``support.models`` judges.
"""
