"""docs/cases.md names tests that exist, and says of every fault which one holds it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "cases.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)


def names_in(file: str) -> set[str]:
    """Test functions, methods, and classes that are given names, of a file."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assigned = {
        each.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for each in node.targets
        if isinstance(each, ast.Name)
    }
    return {name for name in functions | assigned if name.lower().startswith("test")}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_is_named_exists(file: str) -> None:
    assert {name for place, name in NAMED if place == file} - names_in(file) == set()


def test_every_fault_names_a_test() -> None:
    held, _, _ = PAGE.partition("## Not held by a test")
    rows = [line for line in held.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    assert len(rows) > 60
    for row in rows:
        assert re.search(r"`[\w/]+\.py::\w+`", row), row
