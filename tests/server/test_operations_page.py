"""docs/operations.md explains every metric that /metrics serves, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from scheduler.stats import EngineStats
from server.metrics import Metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")


def served() -> set[str]:
    """Names as the page has them: counters with their ending, histograms without."""
    stats = EngineStats(0, 0, 10, 10, 0, 0, 0, 0)
    families = text_string_to_metric_families(Metrics("m", 100).exposition(stats).decode())
    return {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families
        if not family.name.endswith("_created")
    }


def test_the_page_and_the_server_agree_on_the_metrics() -> None:
    tables = PAGE[PAGE.index("## Metrics") :]
    explained = re.findall(r"^\| `([\w:]+)` \|", tables, re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert set(explained) == served()


def test_metrics_named_anywhere_on_the_page_are_served() -> None:
    assert set(re.findall(r"(?:vllm|scissorserve):\w+", PAGE)) <= served()


def test_the_page_says_of_every_alert_what_to_do() -> None:
    (group,) = yaml.safe_load((ROOT / "docker/prometheus/alerts.yaml").read_text())["groups"]
    assert set(re.findall(r"^\| (Scissorserve\w+) \|", PAGE, re.MULTILINE)) == {
        rule["alert"] for rule in group["rules"]
    }
