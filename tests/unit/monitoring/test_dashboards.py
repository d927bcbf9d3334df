"""The dashboards are what Grafana imports: complete, placed, of our metrics, by variables only."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.monitoring.bundle import make_bundle, render
from nccl_inspector.monitoring.panels import COLUMNS
from nccl_inspector.monitoring.site import make_site
from tests.support.dashboard_queries import fill_in, panel_expressions, variable_expressions

Json = dict[str, Any]

BOARDS = {
    name: json.loads(text)
    for name, text in make_bundle(make_site([]), []).items()
    if name.endswith(".json")
}
BUILT_IN = {"__rate_interval", "__range", "datasource"}
every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())


def panels(board: Json) -> list[Json]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def differences(ours: object, theirs: object, path: str = "") -> Iterator[str]:
    """What is in `ours` and not, or otherwise, in `theirs`."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if name in theirs:
                yield from differences(value, theirs[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif ours != theirs:
        yield f"{path}: {ours!r}, {theirs!r}"


@every_board
def test_grafanas_own_library_knows_every_field(board: Json) -> None:
    register_default_plugins()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert list(differences(board, again)) == []


def test_a_field_that_grafana_does_not_know_is_seen() -> None:
    register_default_plugins()
    board = json.loads(json.dumps(next(iter(BOARDS.values()))))
    board["panels"][1]["fieldConfig"]["defaults"]["unitt"] = "s"
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert list(differences(board, again)) == [".panels[1].fieldConfig.defaults.unitt"]


@every_board
def test_every_panel_says_what_it_shows_and_in_which_unit(board: Json) -> None:
    for panel in panels(board):
        assert panel["title"]
        assert re.fullmatch(r"[A-Z0-9].*\.", panel["description"]), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        if panel["type"] == "timeseries":
            assert all(target["legendFormat"] != "__auto" for target in panel["targets"])


@every_board
def test_panels_have_their_own_number_and_place(board: Json) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= COLUMNS for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@every_board
def test_every_variable_is_used_and_every_used_one_is_there(board: Json) -> None:
    names = {variable["name"] for variable in board["templating"]["list"]}
    text = json.dumps([board["panels"], board["templating"]])
    used = {first or second for first, second in re.findall(r"\$(?:\{(\w+)\}|(\w+))", text)}
    assert used - BUILT_IN - {"__url_time_range", "__data", "__all"} <= names
    assert names <= used | {row.get("repeat") for row in board["panels"]}


SCRAPED = "scrape_samples_post_metric_relabeling"


@every_board
def test_every_datasource_is_the_variable(board: Json) -> None:
    sources = re.findall(r'"datasource": \{[^}]*"uid": "([^"]*)"', json.dumps(board))
    assert set(sources) == {"${datasource}"}
    assert len(sources) > len(panels(board))


@every_board
def test_every_query_is_of_the_chosen_cluster_and_of_metrics_that_are_there(board: Json) -> None:
    recorded = set(re.findall(r"record: (\S+)", render("rules", make_site([]))))
    known = load_metrics().keys() | recorded
    for where, expr in [*panel_expressions(board), *variable_expressions(board)]:
        # Without what is in quotes and in by (...): only metrics have a selector.
        for metric, selector in re.findall(r"([\w:]+)\{([^}]*)\}", expr):
            assert metric in known | {"ALERTS", SCRAPED}, (where, metric)
            assert 'cluster="$cluster"' in selector, (where, expr)
        for window in re.findall(r"\[([^\]]+)\]", expr):
            assert window in ("$__rate_interval", "$__range"), (where, expr)


def test_a_sites_label_names_are_in_the_dashboards() -> None:
    site = make_site(["label_cluster=site", "label_job=jobid", "label_node=host"])
    for name, text in make_bundle(site, []).items():
        if name.endswith(".json"):
            for where, expr in panel_expressions(json.loads(text)):
                # Of what Prometheus says of a scrape no rule renames a label.
                ours = re.sub(rf"{SCRAPED}{{.*?}}", "", fill(expr))
                assert not re.search(r"\b(cluster|slurm_job_id|node)\b", ours), where


def fill(expr: str) -> str:
    """Without the variables, which keep their names."""
    names = {"cluster", "job", "node", "comm_name", "message_size", "collective"} | BUILT_IN
    return fill_in(expr, dict.fromkeys(names, "x"))
