"""`scissorserve-bench`, also `python -m client`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from client.bench import EXIT_INTERRUPTED, bench
from client.cli import PROG, parse_options
from client.errors import BenchError, Interrupted


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if a request succeeded, 1 if none did or the run could not start, 130 after Ctrl-C."""
    options = parse_options(argv)
    try:
        return asyncio.run(bench(options))
    except BenchError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, Interrupted):
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
