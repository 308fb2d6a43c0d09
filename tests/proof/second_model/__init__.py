"""A second specification of the queue, written from the documentation alone, that judges histories of calls.

It is no queue: it is told what was called and what was answered, and says whether the documentation allows that.
"""
