# SPDX-License-Identifier: Apache-2.0
"""The rules, alerts and dashboards in VictoriaMetrics: the same as in Prometheus.

Both get the same samples: jobs that are healthy, slow, late and hung. vmalert makes the recorded
series, which Prometheus gets as well. So each expression is asked with the same input.
"""

import json
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.monitoring.bundle import make_bundle
from nccl_inspector.monitoring.site import make_site
from tests.support.dashboard_queries import fill_in, panel_expressions, variable_expressions
from tests.support.past_prometheus import line, prometheus_with, rules_of
from tests.support.promtool import Series, steady
from tests.support.rule_series import END_MIN, Job, agent, rejected, written
from tests.support.victoria_metrics import Answer, Sample, ask_range, victoria_metrics

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

BEGAN_S = 1_790_000_040  # a whole minute
FILES = make_bundle(make_site([]), ["n1"])
RULES = [f"prometheus/nccl-inspector-{name}.yml" for name in ("rules", "alerts")]
CHOSEN = {
    "cluster": "c", "job": "2", "slurm_job_id": "2", "node": "n1", "collective": "AllReduce",
    "comm_name": "dp", "message_size": "1-2MB", "__rate_interval": "5m", "__interval": "1m",
    "__range": "1h",
}  # fmt: skip
JOBS = {
    1: Job(),
    2: Job(dp_gbs=(40, 20), throughput=(300, 200)),
    3: Job(dp_ms={3: 60}, throughput=(300, 150)),
    4: Job(inflight_s=(0, 900), operations=(600, 0)),
}
# Prometheus before 3.0 takes a sample at the very beginning of a window, too; VictoriaMetrics and
# Prometheus 3 do not. So a mean over ten minutes follows a change by a seventh of a step later.
EDGE = 0.15
_VALUES = re.compile(r"(-?[0-9.e]+)(?:([+-][0-9.e]+)?x([0-9]+))?")


def _expanded(values: str) -> Iterator[float | None]:
    """Yield a value for each minute of promtool's notation; None: no sample."""
    for word in values.split():
        if word == "stale" or word.startswith("_"):
            yield from [None] * int(word.partition("x")[2] or 1)
            continue
        match = _VALUES.fullmatch(word)
        assert match, word
        first, step, more = float(match[1]), float(match[2] or 0), int(match[3] or 0)
        yield from (first + step * number for number in range(more + 1))


def _samples() -> Iterator[Sample]:
    series: list[Series] = []
    for number, job in JOBS.items():
        own = {"cluster": "c", "slurm_job_id": str(number)}
        series += job.series(own)
        more = {"user": "u", "partition": "gpu", "nodes": "n[1-2]"}
        series += [
            Series("nccl_inspector_job_info", own | more | {"node": node}, steady((END_MIN, 1)))
            for node in ("n1", "n2")
        ]
    series += agent({"cluster": "c"}, up=f"1+0x{END_MIN - 1}", last_min=40)
    series += rejected({"cluster": "d"}, " ".join(str(max(0, at - 30)) for at in range(END_MIN)))
    series.append(written({"cluster": "c", "slurm_job_id": "1"}, 1, 30))
    for one in series:
        for minute, value in enumerate(_expanded(one.values)):
            if value is not None:
                yield one.name, one.labels, value, BEGAN_S + 60 * minute


def _of_dashboards() -> Iterator[tuple[str, str]]:
    for name, text in FILES.items():
        if name.endswith(".json"):
            board = json.loads(text)
            for where, expr in [*variable_expressions(board), *panel_expressions(board)]:
                yield f"{name}: {where}", fill_in(expr, CHOSEN)


def difference(one: Answer, other: Answer) -> str:
    """Return how two answers differ; empty: by the edge of a window at most."""
    if one.keys() != other.keys():
        return f"series {sorted(one.keys() ^ other.keys())[:2]}"
    for labels, values in one.items():
        if values.keys() != other[labels].keys():
            return f"minutes of {labels}: {sorted(values.keys() ^ other[labels].keys())}"
        for at, value in values.items():
            if not math.isclose(value, other[labels][at], rel_tol=EDGE, abs_tol=1e-9):
                return f"{labels} at {(at - BEGAN_S) // 60} min: {value}, {other[labels][at]}"
    return ""


def test_vmalert_takes_the_rules_as_they_are(tmp_path: Path) -> None:
    for name in RULES:
        path = tmp_path / "rules.yml"
        path.write_text(FILES[name])
        done = subprocess.run(
            ["vmalert", "-dryRun", f"-rule={path}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_every_expression_has_the_same_answer_as_in_prometheus(tmp_path: Path) -> None:
    samples, end_s = list(_samples()), BEGAN_S + 60 * (END_MIN - 1)
    rules, alerts = tmp_path / "rules.yml", tmp_path / "alerts.yml"
    rules.write_text(FILES[RULES[0]])
    alerts.write_text(FILES[RULES[1]])
    with victoria_metrics() as victoria:
        victoria.take(samples)
        victoria.replay(rules, BEGAN_S, end_s)
        recorded = victoria.recorded()
        assert len({name for name, *_ in recorded}) >= 6
        both = sorted([*samples, *recorded], key=lambda one: one[0])
        found, with_series = {}, 0
        text = "".join(line(*one) for one in both)
        with prometheus_with(text, [rules, alerts]) as prometheus:
            for where, expr in [*rules_of(prometheus), *_of_dashboards()]:
                times = BEGAN_S + 20 * 60, end_s - 60
                ours = ask_range(prometheus, expr, *times)
                with_series += bool(ours)
                if said := difference(ours, ask_range(victoria.url, expr, *times)):
                    found[where] = said
    assert found == {}
    assert with_series >= 40
