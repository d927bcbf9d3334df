# SPDX-License-Identifier: Apache-2.0
"""Grafana's dashboard model (schema 39, Grafana 10.4 and later), as far as our dashboards use it.

Grafana's own library (grafana-foundation-sdk) is 5 MB of generated classes. It would have to be on
every node for only three files, so only the tests use it, to check what is made here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

SCHEMA = 39
COLUMNS = 24
NO_DATA = "No data in this time"
GBS = "suffix: GB/s"  # Grafana's own unit for it would turn into MB/s on the same axis
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
_TITLE_HEIGHT = 1


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel."""

    expr: str
    legend: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel without its position; `unit` is one of Grafana's unit ids.

    `empty`: what the panel shows where there are no series.
    """

    kind: str
    title: str
    about: str
    unit: str
    queries: Sequence[Query]
    width: int
    height: int = 8
    extra: Json = field(default_factory=dict)  # its transformations and overrides
    empty: str = NO_DATA


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A title and the panels below it; with `repeat`, shown for each value of that variable."""

    title: str
    panels: Sequence[Panel]
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable whose values are those of a label; `many`: several or all can be chosen."""

    name: str
    title: str
    metric: str  # including its selector
    label: str
    many: bool = False
    hide: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A whole dashboard."""

    uid: str
    title: str
    about: str
    variables: Sequence[Variable]
    rows: Sequence[PanelRow]


def graph(
    title: str, about: str, unit: str, queries: Sequence[Query], width: int = 12,
    empty: str = NO_DATA,
) -> Panel:  # fmt: skip
    """Return a panel with lines over time."""
    return Panel("timeseries", title, about, unit, queries, width, empty=empty)


def number(title: str, about: str, unit: str, expr: str, width: int = 4) -> Panel:
    """Return a panel with the present value."""
    return Panel("stat", title, about, unit, [Query(expr)], width, 4)


def bars(title: str, about: str, unit: str, query: Query, width: int = 12) -> Panel:
    """Return a panel with a bar for the present value of each series."""
    return Panel("bargauge", title, about, unit, [query], width)


def link_to(uid: str, variable: str, column: str) -> str:
    """Return the link from a table cell to a dashboard, for the same cluster and time."""
    return (
        f"/d/{uid}?var-datasource=${{datasource}}&var-cluster=${{cluster}}"
        f"&var-{variable}=${{__data.fields.{column}}}&${{__url_time_range}}"
    )


def listing(
    title: str,
    about: str,
    expr: str,
    columns: dict[str, str],
    *,
    unit: str = "short",
    width: int = 12,
    height: int = 8,
    link: tuple[str, str] = ("", ""),
) -> Panel:
    """Return a table of the present series; `columns` maps labels, and Value, to titles.

    `link`: the title of a column, and the address that its cells link to.
    """
    organize = {
        "id": "organize",
        "options": {
            "excludeByName": {"Time": True} | ({} if "Value" in columns else {"Value": True}),
            "indexByName": {name: place for place, name in enumerate(columns)},
            "renameByName": columns,
        },
    }
    extra: Json = {"transformations": [organize]}
    if link[0]:
        go = {"title": "Open", "url": link[1]}
        extra["overrides"] = [_override(link[0], "byName", {"links": [go]})]
    return Panel("table", title, about, unit, [Query(expr)], width, height, extra)


def _override(which: str, matcher: str, properties: Json) -> Json:
    return {
        "matcher": {"id": matcher, "options": which},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


def _overrides(panel: Panel) -> list[Json]:
    found: list[Json] = list(panel.extra.get("overrides", []))
    if panel.kind == "table":
        # Otherwise a cell without a value says what an empty panel says.
        found.append(_override("string", "byType", {"noValue": "-"}))
    for ref, query in zip(_refs(), panel.queries, strict=False):
        properties: Json = {}
        if query.dashed:
            properties["custom.lineStyle"] = {"fill": "dash", "dash": [8, 6]}
        if properties:
            found.append(_override(ref, "byFrameRefID", properties))
    return found


def _refs() -> str:
    return "ABCDEFGH"


def _targets(panel: Panel, interval: str) -> list[Json]:
    instant = panel.kind != "timeseries"
    return [
        {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "format": "table" if panel.kind == "table" else "time_series",
            "instant": instant,
            "interval": interval,
            "legendFormat": query.legend or "__auto",
            "range": not instant,
            "refId": ref,
        }
        for ref, query in zip(_refs(), panel.queries, strict=False)
    ]


_CALC = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        # At the side: below the lines Grafana cuts it after three rows.
        "legend": {"calcs": [], "displayMode": "list", "placement": "right", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _CALC,
        "textMode": "value",
    },
    "bargauge": {
        "displayMode": "basic",
        "minVizHeight": 12,
        "minVizWidth": 8,
        "orientation": "horizontal",
        "reduceOptions": _CALC,
        "showUnfilled": True,
        "valueMode": "color",
    },
    "table": {"cellHeight": "sm", "showHeader": True},
}
_CUSTOM: dict[str, Json] = {
    "timeseries": {
        "axisSoftMin": 0,
        "drawStyle": "line",
        "fillOpacity": 0,
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "showPoints": "auto",
        "spanNulls": False,
    },
    "table": {"minWidth": 80},
}


def _panel_json(panel: Panel, number_: int, place: Json, interval: str) -> Json:
    color = {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"}
    if panel.kind == "bargauge":
        color = {"mode": "fixed", "fixedColor": "blue"}
    steps = [{"color": "text" if panel.kind == "stat" else "green", "value": None}]
    defaults: Json = {
        "color": color,
        "custom": _CUSTOM.get(panel.kind, {}),
        "thresholds": {"mode": "absolute", "steps": steps},
        "noValue": panel.empty,
        "unit": panel.unit,
    }
    # Because of rounding a ratio of 0 is often 1e-16. For graphs Grafana chooses good decimals
    # itself.
    if panel.unit == "percentunit" and panel.kind != "timeseries":
        defaults["decimals"] = 1
    made: Json = {
        "datasource": DATASOURCE,
        "description": panel.about,
        "fieldConfig": {"defaults": defaults, "overrides": _overrides(panel)},
        "gridPos": place,
        "id": number_,
        "options": _OPTIONS[panel.kind],
        "targets": _targets(panel, interval),
        "title": panel.title,
        "type": panel.kind,
    }
    if "transformations" in panel.extra:
        made["transformations"] = panel.extra["transformations"]
    return made


def _row_json(row: PanelRow, number_: int, top: int) -> Json:
    made: Json = {
        "collapsed": False,
        "gridPos": {"h": _TITLE_HEIGHT, "w": COLUMNS, "x": 0, "y": top},
        "id": number_,
        "panels": [],
        "title": row.title,
        "type": "row",
    }
    return made | {"repeat": row.repeat} if row.repeat else made


def _lay_out(rows: Sequence[PanelRow], interval: str) -> list[Json]:
    """Return all panels, placed from left to right and in lines, below the titles of their rows."""
    made: list[Json] = []
    top = 0
    for row in rows:
        made.append(_row_json(row, len(made) + 1, top))
        top += _TITLE_HEIGHT
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            made.append(_panel_json(panel, len(made) + 1, place, interval))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return made


def _variable_json(variable: Variable) -> Json:
    text = f"label_values({variable.metric}, {variable.label})"
    made: Json = {
        "datasource": DATASOURCE,
        "hide": 2 if variable.hide else 0,
        "includeAll": variable.many,
        "label": variable.title,
        "multi": variable.many,
        "name": variable.name,
        "query": {"query": text, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,  # when the time range changes, so that ended jobs can be chosen
        "regex": "",
        "sort": 4,  # numerical, descending: the newest job first
        "type": "query",
    }
    if variable.many:
        everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
        made |= {"allValue": ".*", "current": everything, "sort": 7}
    return made


def dashboard_json(board: Dashboard, interval: str) -> Json:
    """Return the dashboard in Grafana's import format; `interval` is that of the scrape."""
    datasource = {
        "hide": 0,
        "includeAll": False,
        "label": "Prometheus",
        "multi": False,
        "name": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "type": "datasource",
    }
    return {
        "annotations": {"list": []},
        "description": board.about,
        "editable": True,
        "graphTooltip": 1,  # show the cross hair on all panels
        "links": [
            {
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
                "tags": ["nccl-inspector"],
                "title": "NCCL",
                "type": "dashboards",
            }
        ],
        "panels": _lay_out(board.rows, interval),
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "tags": ["nccl-inspector"],
        "templating": {"list": [datasource, *map(_variable_json, board.variables)]},
        "time": {"from": "now-1h", "to": "now"},
        "title": board.title,
        "uid": board.uid,
    }
