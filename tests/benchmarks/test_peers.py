"""Figures, medians, ratios, tables and limits of the comparison."""

from __future__ import annotations

import pytest

from benchmarks.engines.process import Report
from benchmarks.engines.protocol import Closing, Outcome
from benchmarks.machine import Machine
from benchmarks.peers_figures import Metric, figures, medians, metrics, ratios, reservations
from benchmarks.peers_table import median_table, ratio_table
from benchmarks.roofline import Shape, decode_limit, prefill_limit

SPEED, WAIT = Metric("decode 1", "decode", "tok/s"), Metric("ttft 1", "first token", "s", higher_is_better=False)
SMOLLM2 = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
}


def test_figures_of_a_worker() -> None:
    report = Report(
        [
            Outcome("cold start", [[0.2]], 4.0),
            Outcome("warm-up", [[0.2, 0.3]], 5.0),
            *(Outcome("prefill 100", [[seconds]], 6.0) for seconds in (0.5, 2.0, 1.0)),
            Outcome("decode 2", [[1.0, 2.0, 3.0], [2.0, 3.0]], 9.0),
        ],
        Closing("1.0", 3 * 2**20),
        others=0.25,
    )
    assert figures(report, new_tokens=1) == {
        "cold start": 4.0,
        "prefill 100": 100.0,
        "decode 2": 2.0,
        "ttft 2": 1.5,
        "peak memory": 3.0,
        "others": 25.0,
    }


def test_every_figure_has_a_line_in_the_table() -> None:
    keys = [metric.key for metric in metrics([1, 4, 16], [512])]
    assert keys == [
        "decode 1",
        "decode 4",
        "decode 16",
        "prefill 512",
        "ttft 1",
        "ttft 16",
        "cold start",
        "peak memory",
        "others",
    ]


def test_medians_are_of_what_every_round_has() -> None:
    rounds = [{"a": 1.0, "b": 1.0}, {"a": 5.0}, {"a": 2.0, "b": 3.0}]
    assert medians(rounds) == {"a": 2.0}


def test_ratios_compare_within_a_round_and_are_above_one_where_ours_is_better() -> None:
    ours = [{"decode 1": 20.0, "ttft 1": 1.0}, {"decode 1": 60.0, "ttft 1": 3.0}]
    theirs = [
        {"decode 1": 10.0, "ttft 1": 2.0},
        {"decode 1": 30.0, "ttft 1": 6.0},
    ]  # in a faster hour
    assert ratios(ours, theirs, [SPEED, WAIT]) == {"decode 1": 2.0, "ttft 1": 2.0}


def test_readers_hear_of_missing_rounds_and_of_a_busy_machine() -> None:
    calm, busy = {"others": 1.0}, {"others": 60.4}
    assert reservations({"us": [calm, calm], "them": [calm, calm]}, planned=2) == []
    assert reservations({"us": [calm, busy], "them": [calm]}, planned=2) == [
        "them: 1 of 2 rounds",
        "others took up to 60% of the CPU time",
    ]


def test_ratios_leave_out_what_was_not_measured_of_both_or_tells_nothing_of_an_engine() -> None:
    assert ratios([{"decode 1": 1.0}], [{"ttft 1": 1.0}], [SPEED, WAIT]) == {}
    assert ratios([{"others": 1.0}], [{"others": 1.0}], metrics([1], [512])) == {}


def test_tables_are_markdown_with_a_column_per_engine() -> None:
    table = median_table([SPEED, WAIT], {"us": {"decode 1": 1234.5, "ttft 1": 0.25}}, {"limit": {"decode 1": 20.04}})
    assert table.splitlines() == [
        "|                 |    us | limit |",
        "| --------------- | ----: | ----: |",
        "| decode (tok/s)  | 1,234 |  20.0 |",
        "| first token (s) |  0.25 |     - |",
    ]
    assert ratio_table([SPEED, WAIT], {"them": {"decode 1": 2.0}}).splitlines()[2:] == ["| decode | 2.00x |"]


def test_the_shape_of_the_default_model() -> None:
    shape = Shape.from_config(SMOLLM2)
    assert shape.layer_weights == 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536)
    assert shape.head_weights == 576 * 49_152
    assert shape.row == 30 * 2 * 192


def test_one_sequence_is_limited_by_reading_and_a_prompt_by_computing() -> None:
    shape, machine = Shape.from_config(SMOLLM2), Machine(read=10e9, float32=100e9, bfloat16=200e9, int8=300e9)
    weights = shape.layer_weights + shape.head_weights
    assert decode_limit(shape, machine, "float32", 1, 0) == pytest.approx(10e9 / (4 * weights))
    assert decode_limit(shape, machine, "int8", 1, 0) == pytest.approx(10e9 / weights)
    prompt = 512 * 2 * shape.layer_weights + 2 * shape.head_weights + 2 * shape.query * 512 * 513
    assert prefill_limit(shape, machine, "int8", 512) == pytest.approx(512 * 300e9 / prompt)


def test_more_context_lowers_the_limit_and_more_sequences_raise_it() -> None:
    shape, machine = Shape.from_config(SMOLLM2), Machine(read=10e9, float32=100e9, bfloat16=200e9, int8=300e9)
    limits = [decode_limit(shape, machine, "int8", n, 512) for n in (1, 4, 16, 64)]
    assert limits == sorted(limits)
    assert decode_limit(shape, machine, "int8", 16, 2048) < limits[2]
