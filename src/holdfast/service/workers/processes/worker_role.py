"""Whether this process is a worker process, in which the program's modules are imported a second time.

Worker processes are spawned: they import the module of the handler, and the main module, before they are given any
work. What those modules do with a service there must not reach for the locks of the process that started them:
``service.queue()`` opens queues as a client when they are used first, and ``service.run()`` returns at once.

The role is in the process's name, which multiprocessing sets before it imports anything of the program's.
"""

from __future__ import annotations

import sys

NAME_PREFIX = "holdfast-worker-"


def is_worker_process() -> bool:
    """Whether this process was started to handle another one's messages."""
    process = sys.modules.get("multiprocessing.process")  # a process that has not imported it is not one
    return process is not None and process.current_process().name.startswith(NAME_PREFIX)
