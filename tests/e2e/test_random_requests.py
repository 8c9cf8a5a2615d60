"""The real server under requests that nobody wrote: random schemas, and what a fuzzer makes. Small versions of both."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import jsonschema
import pytest

from benchmarks.fuzz import complaint, run
from benchmarks.fuzz_cases import Case, make_case, smaller
from benchmarks.random_schemas import random_schemas
from benchmarks.schemas import ask_all
from benchmarks.served import server

ROUTES: Sequence[tuple[str, str]] = [("POST", "/v1/completions"), ("GET", "/health"), ("POST", "/tokenize")]


@pytest.mark.model
@pytest.mark.usefixtures("default_model_folder")
def test_answers_have_the_form_of_random_schemas() -> None:
    with server("--kv-cache-memory-bytes", "64MiB") as running:
        schemas = random_schemas(10, seed=0)
        outcomes = asyncio.run(ask_all(running.url, schemas, concurrent=8, max_tokens=200, temperature=1.0))
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    assert set(verdicts) <= {"valid", "cut"}, outcomes
    assert verdicts["valid"] >= 5


@pytest.mark.model
@pytest.mark.usefixtures("default_model_folder")
def test_ten_seconds_of_broken_requests_break_nothing() -> None:
    outcome = run(seed=0, seconds=10, concurrent=4, show=False)
    assert outcome.failure is None, f"{outcome.failure}\n{outcome.request}"
    assert outcome.answers.get("200")
    assert outcome.answers.get("400")


def test_schemas_are_schemas_and_the_same_for_a_seed() -> None:
    schemas = random_schemas(100, seed=3)
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
    assert schemas == random_schemas(100, seed=3)
    assert schemas != random_schemas(100, seed=4)


def size(case: Case) -> int:
    """Headers and bytes of the body."""
    return len(case.headers) + len(case.body)


def test_cases_are_the_same_for_a_seed_and_shrink() -> None:
    for number in range(300):
        case = make_case(7, number, ROUTES)
        assert case == make_case(7, number, ROUTES)
        assert all(size(each) < size(case) for each in islice(smaller(case), 50))


@pytest.mark.parametrize(
    ("status", "body", "is_wrong"),
    [
        ("200", b"{}", False),
        ("400", b'{"error": {"message": "no"}}', False),
        ("503", b'{"error": {"message": "full"}}', False),
        ("400", b"Bad Request", True),
        ("500", b'{"error": {"message": "oops"}}', True),
        ("200", b'data: {}\n\ndata: {"error": {"code": "internal_error"}}\n\ndata: [DONE]\n\n', True),
        ("none", b"", False),
    ],
)
def test_what_counts_as_a_fault(status: str, body: bytes, is_wrong: bool) -> None:
    case = Case(b"POST", b"/v1/completions", (), b"{}")
    assert (complaint(case, status, body) is not None) == is_wrong
