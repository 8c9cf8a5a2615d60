"""Orchestrators run images as users that no list of users has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNKNOWN = """
import pwd, sys

def nobody(key):
    raise KeyError(key)

pwd.getpwuid = pwd.getpwnam = nobody
from server.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.model
def test_a_user_that_nobody_knows_can_run_the_server(default_model_folder: Path) -> None:
    names = ("USER", "LOGNAME", "LNAME", "USERNAME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HOME": "/", "SCISSORSERVE_CACHE": str(default_model_folder.parent)}
    command = [sys.executable, "-c", UNKNOWN, "--check", "--kv-cache-memory-bytes", "16MiB"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kv-budget" in done.stdout
