"""Unit tests of rules as promtool runs them: series of samples, and what the rules make of them."""

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.monitoring.bundle import render
from nccl_inspector.monitoring.site import Site

Labels = dict[str, str]
Test = Mapping[str, object]  # one of promtool's own, as it goes into its file


@dataclass(frozen=True, slots=True)
class Series:
    """One series in promtool's notation: samples a minute (or `interval`) apart, from minute 0."""

    name: str
    labels: Labels
    values: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What an expression gives at a minute: series of these labels, each of value 1."""

    minute: float
    expr: str
    series: list[Labels]


def _selector(labels: Labels) -> str:
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


def steady(*pieces: tuple[int, float | None]) -> str:
    """A value for so many minutes each; None: no sample."""
    return " ".join(
        f"_x{minutes}" if value is None else f"{value:g}+0x{minutes - 1}"
        for minutes, value in pieces
    )


def counter(*pieces: tuple[int, float]) -> str:
    """A counter that grows by so much each minute, for so many minutes."""
    words, total = [], 0.0
    for minutes, step in pieces:
        words.append(f"{total:.9g}+{step:.9g}x{minutes - 1}")
        total += step * minutes
    return " ".join(words)


def rules_of(site: Site) -> dict[str, str]:
    """Return the texts of the rule files by name."""
    return {f"{name}.yml": render(name, site) for name in ("rules", "alerts")}


def failures(
    folder: Path,
    site: Site,
    series: Iterable[Series],
    expected: Iterable[Expected],
    interval: str = "1m",
) -> list[str]:
    """Return what promtool says of each expression that is not as expected."""
    return failures_of(folder, rules_of(site), series, expected, interval)


def failures_of(
    folder: Path,
    rules: Mapping[str, str],
    series: Iterable[Series],
    expected: Iterable[Expected],
    interval: str = "1m",
) -> list[str]:
    """As failures(), with the texts of the rule files by name; their groups go in that order."""
    wanted = [
        {
            "expr": one.expr,
            "eval_time": f"{60 * one.minute:.0f}s",
            "exp_samples": [{"labels": _selector(own), "value": 1} for own in one.series],
        }
        for one in expected
    ]
    done = _run(folder, rules, series, {"promql_expr_test": wanted}, interval)
    said = (done.stdout + done.stderr).split("    expr: ")
    return [] if done.returncode == 0 else said[1:] or said


def texts_of_alert(
    folder: Path,
    rules: Mapping[str, str],
    series: Iterable[Series],
    alert: str,
    minutes: Iterable[float],
    interval: str = "1m",
) -> list[str]:
    """Return what promtool shows of an alert that fires, at each minute: labels and annotations."""
    wanted = [
        {"alertname": alert, "eval_time": f"{60 * minute:.0f}s", "exp_alerts": []}
        for minute in minutes
    ]
    done = _run(folder, rules, series, {"alert_rule_test": wanted}, interval)
    return (done.stdout + done.stderr).split("alertname: ")[1:]


def _run(
    folder: Path,
    rules: Mapping[str, str],
    series: Iterable[Series],
    wanted: Mapping[str, Sequence[Test]],
    interval: str,
) -> subprocess.CompletedProcess[str]:
    for name, text in rules.items():
        (folder / name).write_text(text)
    test = {
        "interval": interval,
        "input_series": [
            {"series": one.name + _selector(one.labels), "values": one.values} for one in series
        ],
        **wanted,
    }
    path = folder / "test.yml"
    words = {
        "rule_files": list(rules),
        "evaluation_interval": interval,
        "group_eval_order": [
            name for text in rules.values() for name in re.findall(r"^  - name: (\S+)$", text, re.M)
        ],
        "tests": [test],
    }
    path.write_text(json.dumps(words))
    return subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )
