"""What Prometheus and Grafana are set up to ask for is what the server serves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.server.stack import Model, Stack, make_stack, tiny_tokenizer

DOCKER = Path(__file__).parents[2] / "docker"
BUILT_IN = {"up"}  # Prometheus makes it itself
LABELS_OF_PROMETHEUS = {"job", "instance"}
FUNCTIONS = {
    "histogram_quantile", "increase", "label_values", "max", "min", "min_over_time", "rate", "sum", "by", "le",
}  # fmt: skip


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads((DOCKER / "grafana/dashboards/scissorserve.json").read_text())


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """Every sample that a server serves after a request, and its labels."""
    tokenizer = tiny_tokenizer()
    server: Stack = make_stack(Model(tokenizer), tokenizer, {}, {})

    async def ask(client: httpx.AsyncClient) -> str:
        await client.post("/v1/completions", json={"prompt": "hi", "n": 2})
        return (await client.get("/metrics")).text

    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(server.run(ask)):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    """All that the dashboard and the alerts ask."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (variable["query"]["query"] for variable in dashboard["templating"]["list"])
    for group in yaml.safe_load((DOCKER / "prometheus/alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def metrics_in(expression: str) -> dict[str, set[str]]:
    """The metrics that `expression` selects, and the labels that it selects them by."""
    bare = re.sub(r"\[[^\]]*\]", "", expression)
    grouped = {label for labels in re.findall(r"\bby \(([^)]*)\)", bare) for label in re.split(r",\s*", labels)}
    bare = re.sub(r"\bby \([^)]*\)", "", bare)
    found = {}
    for name, selectors in re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^}]*)\})?", bare):
        if name in FUNCTIONS or (name in ("model_name", "instance") and "label_values" in bare):
            continue
        found[name] = set(re.findall(r"(\w+)\s*[=!]", selectors)) | grouped
    return found


def test_every_metric_that_is_asked_for_is_served_with_its_labels(
    dashboard: dict[str, Any], served: dict[str, set[str]]
) -> None:
    asked = [pair for expression in expressions(dashboard) for pair in metrics_in(expression).items()]
    assert len(asked) > 40
    for name, labels in asked:
        if name in BUILT_IN:
            continue
        assert name in served, f"{name} is asked for, but not served"
        assert labels - LABELS_OF_PROMETHEUS <= served[name], f"{name} has no {labels - served[name]}"


def test_what_an_operator_looks_for_is_on_the_dashboard(dashboard: dict[str, Any]) -> None:
    asked = {name for expression in expressions(dashboard) for name in metrics_in(expression)}
    assert asked >= {
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "scissorserve:kv_pages",
        "scissorserve:kv_rows_evicted_total",
        "scissorserve:kv_compressions_total",
        "scissorserve:preemptions_total",
        "scissorserve:step_seconds_total",
    }


def test_panels_do_not_overlap_and_name_the_provisioned_source(dashboard: dict[str, Any]) -> None:
    source = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == source["uid"]
            assert all(target["datasource"]["uid"] == source["uid"] for target in panel["targets"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_parts_find_each_other(compose: dict[str, Any]) -> None:
    scrapes = yaml.safe_load((DOCKER / "prometheus/prometheus.yaml").read_text())
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in scrapes["scrape_configs"]}
    host, _, port = jobs["scissorserve"][0].partition(":")
    assert host in compose
    assert compose[host]["ports"][0].rpartition(":")[2] == port
    assert all((DOCKER / "prometheus" / file).is_file() for file in scrapes["rule_files"])
    source = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    assert compose["prometheus"]["ports"][0].endswith(":9090")
    provider = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/scissorserve.yaml").read_text())["providers"][
        0
    ]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in compose["grafana"]["volumes"]
    assert "./prometheus:/etc/prometheus:ro" in compose["prometheus"]["volumes"]


def test_nothing_but_the_server_is_needed_to_serve(compose: dict[str, Any]) -> None:
    assert "depends_on" not in compose["server"]
    for service in ("prometheus", "grafana"):
        assert all(port.startswith("${PUBLISH") and "127.0.0.1" in port for port in compose[service]["ports"])
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", compose[service]["image"]), (
            "a version, so that it stays the same"
        )


def test_alerts_say_what_they_are_about() -> None:
    (group,) = yaml.safe_load((DOCKER / "prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (of Debian's package prometheus) is not installed"
)
def test_prometheus_takes_its_files() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", str(DOCKER / "prometheus/prometheus.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
