"""Notices an event loop that answers nobody, not even a health check, and says in the log where it hangs."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback

logger = logging.getLogger(__name__)

_FRAMES = 6  # the innermost ones tell where it hangs


class LoopWatchdog:
    """A thread that asks the event loop for a sign of life every `interval` seconds.

    Start and stop it on the loop. `limit`: seconds without an answer that are worth a line in the log. It changes
    nothing: probes of a loop that hangs time out, which is what tells others.
    """

    def __init__(self, interval: float = 1.0, limit: float = 5.0) -> None:
        self._interval = interval
        self._limit = limit
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to watch the loop that runs here."""
        arguments = (asyncio.get_running_loop(), threading.get_ident())
        threading.Thread(target=self._watch, args=arguments, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        while not self._stopped.wait(self._interval):
            answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # it is closed
                return
            if not answered.wait(self._limit):
                logger.error("the event loop hangs for more than %g s, in %s", self._limit, _place(thread))
                answered.wait()
                logger.warning("the event loop goes on")


def _place(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    stack = traceback.extract_stack(frame)[-_FRAMES:] if frame is not None else []
    return " > ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in stack)
