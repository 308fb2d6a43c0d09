"""The engine that runs the present handler: a handler that closes its service must not wait for its own end."""

from __future__ import annotations

from contextvars import ContextVar

handled_by: ContextVar[object] = ContextVar("handled_by", default=None)
"""Set in the threads and the tasks of handlers, to what runs them. Tasks that a handler starts have it too."""
