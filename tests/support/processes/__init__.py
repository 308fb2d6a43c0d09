"""Processes, threads and event loops for tests: started, killed, interrupted, and never left behind."""
