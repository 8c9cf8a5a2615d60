"""`scissorserve-bench`, also `python -m client`."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress

from client.bench import EXIT_FAILED, EXIT_INTERRUPTED, bench
from client.cli import PROG, parse_options
from client.errors import BenchError, Interrupted
from client.loop import run


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if every request succeeded, 1 if one failed or the run could not start, 130 after Ctrl-C or SIGTERM.

    A mistake on the command line ends the program with status 2.
    """
    options = parse_options(argv)
    try:
        return run(_until_terminated(bench(options)))
    except BenchError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except (KeyboardInterrupt, asyncio.CancelledError, Interrupted):
        return EXIT_INTERRUPTED


async def _until_terminated(main: Coroutine[None, None, int]) -> int:
    """Lets SIGTERM end the run as Ctrl-C does: with a report of what was measured."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, ValueError):  # Windows; or not the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await main


if __name__ == "__main__":
    sys.exit(main())
