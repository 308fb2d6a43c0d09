"""Owners of shared queues are killed and stopped, round after round, while eight processes put and take.

``worker.py`` works, and notes each call before and after it in a journal. ``reign.py`` kills and stops. ``judge.py``
says from the journals alone whether any promise was broken.
"""
