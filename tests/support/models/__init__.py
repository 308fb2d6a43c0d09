"""What should be there: queues as plain Python objects, and the oracles that judge what a crash has left.

A model opens no file and takes no lock. tests/README.md says which one is for what.
"""
