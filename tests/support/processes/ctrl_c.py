"""Ctrl-C where nobody sits at the keyboard: a shell has its background jobs ignore it, and so does what they start."""

from __future__ import annotations

import signal


def have_ctrl_c_work() -> None:
    """Have it raise ``KeyboardInterrupt`` in this process, and in those that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
