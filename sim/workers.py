"""Worker processes that do not outlive the process that they work for."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Initializer of a worker process: it ends at once when its parent has ended, however that came about."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
