"""What Prometheus answers to every query of a dashboard, with repeated rows written out."""

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from tests.sandbox.prometheus import get
from tests.support.dashboard_queries import fill_in

Json = dict[str, Any]


def write_out(board: Json, choices: Mapping[str, list[str]]) -> Iterator[tuple[Json, Json]]:
    """Each panel, and the value that its row is repeated for; places are moved down."""
    rows: list[list[Json]] = []
    for panel in board["panels"]:
        if panel["type"] == "row":
            rows.append([])
        rows[-1].append(panel)
    moved = 0
    for row in rows:
        repeat = row[0].get("repeat")
        heights = {panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in row}
        height = max(heights) - row[0]["gridPos"]["y"]
        times = choices[repeat] if repeat else [""]
        for number, choice in enumerate(times):
            for panel in row:
                copy = deepcopy(panel)
                copy["gridPos"]["y"] += moved + number * height
                yield copy, {repeat: choice} if repeat else {}
        moved += (len(times) - 1) * height


def ask(base: str, target: Json, expr: str, start: float, end: float) -> list[Json]:
    """One target's series: ref, labels, legend, times in ms, values."""
    if target["instant"]:
        words = {"query": expr, "time": end}
        found = _results(f"{base}/api/v1/query?{urllib.parse.urlencode(words)}")
        for one in found:
            one["values"] = [one.pop("value")]
    else:
        words = {"query": expr, "start": start, "end": end, "step": 1}
        found = _results(f"{base}/api/v1/query_range?{urllib.parse.urlencode(words)}")
    return [
        {
            "ref": target["refId"],
            "labels": one["metric"],
            "legend": _legend(target["legendFormat"], one["metric"]),
            "times": [float(stamp) * 1000 for stamp, _ in one["values"]],
            "values": [float(value) for _, value in one["values"]],
        }
        for one in found
    ]


def _results(url: str) -> list[Json]:
    found: list[Json] = json.loads(get(url))["data"]["result"]
    return found


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


def page(
    base: str, board: Json, choices: Mapping[str, list[str]], span: tuple[float, float]
) -> Json:
    """All that preview.jsx needs of a dashboard; `choices` has the values of its variables."""
    own = {name: "|".join(values) for name, values in choices.items()}
    own |= {"__rate_interval": "6s", "__range": f"{span[1] - span[0]:.0f}s"}
    panels = []
    for panel, repeated in write_out(board, choices):
        values = own | repeated
        panel["title"] = fill_in(panel["title"], values)
        frames = [
            frame
            for target in panel.get("targets", [])
            for frame in ask(base, target, fill_in(target["expr"], values), *span)
        ]
        panels.append({"panel": panel, "frames": frames})
    return {"board": board, "from": span[0] * 1000, "to": span[1] * 1000, "panels": panels}
