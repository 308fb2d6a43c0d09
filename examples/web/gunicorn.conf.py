"""What gunicorn does in each of its workers: handles orders in a thread beside the requests, and ends cleanly.

gunicorn reads this file from the directory in which it is started. With ``--preload`` the application is imported
before the fork; these hooks run behind it.
"""

from __future__ import annotations

import threading
from typing import Any


def post_worker_init(worker: Any) -> None:
    """Begin to handle orders, in a worker that is about to take requests."""
    from shop import service

    threading.Thread(target=service.run, name="orders", daemon=True).start()


def worker_exit(server: Any, worker: Any) -> None:
    """Let handlers that run finish, and give the other orders to the next process."""
    from shop import service

    service.close()
