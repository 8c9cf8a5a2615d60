"""What is shipped, and that what is written about it is true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from paged_kv.plugins import names
from server.cli import build_parser

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy, since building leaves files behind
    for part in ("client", "csrc", "models", "paged_kv", "scheduler", "server", "tests", "benchmarks"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / file, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("scissorserve-*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in files}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "client",
        "csrc",
        "models",
        "paged_kv",
        "scheduler",
        "server",
    }
    modules = {path.relative_to(ROOT).as_posix() for package in top for path in (ROOT / package).rglob("*.py")}
    assert modules <= set(files), "a module is missing from the wheel"
    calibrations = {path.relative_to(ROOT).as_posix() for path in (ROOT / "models").rglob("*.safetensors")}
    assert calibrations, "no calibration of the default model is shipped"
    assert calibrations <= set(files), "a calibration is missing from the wheel"
    assert any(name.startswith("csrc/kernels.") for name in files), "the kernels are missing from the wheel"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_in_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_flags_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "docs/eviction.md").read_text(encoding="utf-8")
    known = build_parser().format_help()
    for flag in set(re.findall(r"`(--[a-z-]+)", text)):
        assert flag in known, f"{flag} is documented, but is no flag"


def test_every_policy_is_documented() -> None:
    text = (ROOT / "docs/eviction.md").read_text(encoding="utf-8")
    for name in names("paged_kv.policies"):
        assert f"| `{name}` |" in text


def test_no_test_replaces_a_clock_of_the_whole_process() -> None:
    """An event loop in another thread would sleep until a time that never comes."""
    for path in (ROOT / "tests").rglob("*.py"):
        found = re.search(
            r"""setattr\(\s*(["'][\w.]*\btime\.|(\w+\.)*time,|["'](?:time|asyncio)\.)""", path.read_text("utf-8")
        )
        assert not found, f"{path.name}: {found and found[0]}"
