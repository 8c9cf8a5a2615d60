"""What the benchmark of rows sets up and counts; its times are nobody's to test."""

from __future__ import annotations

import pytest
import torch

from benchmarks.quality_engine import Subject, Variant
from benchmarks.rows import measured, settings
from models.checkpoint import Checkpoint
from models.loader import load_model
from tests.models.tiny import prompt, saved, tiny_llama


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A tiny model without a calibration."""
    checkpoint = Checkpoint(saved(tiny_llama(), tmp_path_factory.mktemp("llama")))
    return Subject(checkpoint, load_model(checkpoint, torch.float32), None)


def test_every_setting_reads_the_rows_that_it_keeps(subject: Subject) -> None:
    with torch.inference_mode():
        chosen = settings(subject, ["float32", "bfloat16"], [1.0, 0.5], prompt(200), 3, Variant("streaming"))
        assert [str(setting) for setting in chosen] == [
            "float32, 100%",
            "float32, 50%",
            "bfloat16, 100%",
            "bfloat16, 50%",
        ]
        lanes, dim = subject.model.config.num_lanes, subject.model.config.head_dim
        rows = [setting.bytes_read / setting.row_bytes / lanes for setting in chosen]
        assert rows == [600, 300, 600, 300]
        assert [setting.row_bytes for setting in chosen] == [8 * dim, 8 * dim, 4 * dim, 4 * dim]
        table = measured(chosen, steps=3, read=1e9)
    assert list(table) == [str(setting) for setting in chosen]
    whole = table["float32, 100%"]
    assert whole["limit ms"] == pytest.approx((600 + 3 * 3) * lanes * 8 * dim / 1e6)
    assert 0 < whole["attention ms"] < whole["step ms"]
