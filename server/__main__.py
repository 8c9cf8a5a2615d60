"""`scissorserve`, also as `python -m server`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from server.cli import own_version, parse

# How long threads of a finished computation spin before they sleep. OpenMP's own choice is so long that on a machine
# with anything else to do, threads wait for others that spin: a step then takes several times as long.
_SPIN_COUNT = "20000"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop; returns the process's exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _spare_the_cores()
    if arguments[:1] == ["calibrate"]:
        from server import calibrate

        return calibrate.main(arguments[1:])
    options = parse(arguments)
    if options.version:
        print(own_version())
        return 0
    signal.signal(signal.SIGTERM, _leave)  # as process 1 of a container, nothing else would end the loading
    from server.command import run

    return run(options)


def _spare_the_cores() -> None:
    """OpenMP reads its environment when torch is loaded, which must come after this."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """End at once: nothing is served yet, and what loading writes is complete or absent."""
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
