# SPDX-License-Identifier: Apache-2.0
"""What the reports of kept jobs say when a number that judges is halved or doubled.

python -m tests.simulator.trials --cases 'stall-*,healthy-short' --seeds 2 --played build/played
python -m tests.simulator.sensitivity build/played --numbers lone_stops --out build/numbers.json
python -m tests.simulator.sensitivity build/played --out build/numbers.json --table FILE

Each number is judged with the jobs that its module is about, and with healthy ones. Of a share the
distance to the nearer end (0 or 1) is halved or doubled, of a ratio above 1 what is above 1.
Numbers that `--out` already has are not judged again.
"""

import argparse
import ast
import fnmatch
import importlib
import inspect
import json
import os
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from nccl_inspector.model.card import INFO, Card
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.summary.attempts import load_summaries
from tests.simulator.grade import Grade, grade
from tests.simulator.play import JOB_ID

_REPLAY = "nccl_inspector.analysis.replay"
_COST_CHANGES, _COST_CHANGES_LEAST = 0.1, 0.002  # of the cost; of the job's time
Change = dict[str, str]


@dataclass(frozen=True)
class Group:
    """Numbers of a module, and patterns of the cases that tell what they do."""

    module: str
    names: tuple[str, ...]
    cases: tuple[str, ...]


_STOPS = ("stall*", "pause*", "saves*", "evaluating*", "host-stall*", "host-pauses")
_HEALTHY = ("healthy-*", "still-*", "storage-*", "moe-hot", "stage-uneven")
_NETWORK = ("nic-*", "network-*", "nvlink-*", "node-*", "one-way-*", "ring-*", "congestion-*")
_LATE = ("gpu-*", "host-*", "set-*", "one-of-node")
GROUPS = (
    Group("gaps", ("_FIRST_MAX",), _LATE),
    Group("batch_size", ("_ODD_TIMES", "NEARLY_ALL"), _LATE),
    Group("blocking", ("_HELD_POSITIVE", "_NO_CHANGE"), _LATE),
    Group(
        "culprits",
        ("_LARGE_SET", "_UNIT_SUSPECTS", "LATE_NS_MIN", "_LONG_NS"),
        (*_LATE, *_HEALTHY),
    ),
    Group("outside_causes", ("_EXPLAINED_BY_STAGE",), ("set-stage", "gpu-pp*", *_HEALTHY)),
    Group("late_causes", ("_HELD_TIMES", "_HELD_SHARE"), (*_LATE, *_HEALTHY)),
    Group("late_calls", ("_LATE_NS_MIN", "SHORT_SHARE"), (*_LATE, *_STOPS)),
    Group(
        "lone_stops",
        ("_COMMON", "_LEAST", "_MUCH", "_SHORT", "_TIMES", "_OTHERS", "_CHANCE_MAX", "_SAME",
         "_WHOLE_SEEN", "_NODE_SHARE", "_NO_LONGER", "_DENSE", "_AT_ENDS", "_RARE", "_ALIKE",
         "_SEEN_OF_IT", "_LONG_SHARE"),
        (*_STOPS, *_HEALTHY),
    ),
    Group(
        "late_stages",
        ("_PIECES_MIN", "_BASE", "_GROWN_MIN", "_ERRORS", "_SPREAD_MIN", "_SLOW_MIN", "_UNEVEN_MIN",
         "_COST_ERRORS"),
        ("set-stage", "stage-*", "gpu-pp*", "host-pipelines", "set-pipeline", "healthy-p*"),
    ),
    Group(
        "paths",
        ("SLOW", "_QUARTER", "_CLEARLY_SLOW", "_SPREADS", "_SPREAD_OF", "OPERATIONS_MIN",
         "_SIZE_CLASS_MIN", "_KIN_MIN", "_MOST",
         "_CLOCKS_TIMES", "_CLOCKS_QUANTILE", "_SLOW_PART", "_FINE_PART"),
        (*_NETWORK, "healthy-*"),
    ),
    Group(
        "longer_transfers",
        ("LONGER", "_STILL_LONGER", "_BASE_QUANTILE", "_PIECES_MIN", "_PATH_ROWS_MIN",
         "_EDGE_PARTS", "_STATES", "_STATE_PIECES_MIN", "_PLACE_ROWS_MIN", "_BRIEF_SHARE_MAX",
         "_TOGETHER_TIMES", "_TOGETHER_Z", "_BRIEF_MIN"),
        (*_NETWORK, "healthy-*"),
    ),
    Group(
        "alignment",
        ("_NOISE_QUANTILE", "_NOISE_FAR", "_NOISE_NS_MIN", "_SHORT_QUANTILE", "_ROUNDS",
         "_DRIFT_MAX", "_FINE_PIECES"),
        (*_LATE, *_NETWORK, "healthy-*"),
    ),
    Group("missing_last", ("_OPERATIONS_MIN", "_INNER", "_SLOPE_MAX", "_ERROR_MAX", "MOST"),
          ("*missing*",)),
)  # fmt: skip


def halved_and_doubled(value: float) -> tuple[float, float]:
    """Return a smaller and a larger value, as unlike the number as its half and its double."""
    if isinstance(value, int):
        return max(value // 2, 0), 2 * value
    if 0.5 < abs(value) < 1:
        rest = 1 - abs(value)
        sign = 1 if value > 0 else -1
        return sign * max(1 - 2 * rest, abs(value) / 2), sign * (1 - rest / 2)
    if 1 < value < 2:
        return 1 + (value - 1) / 2, 1 + 2 * (value - 1)
    return value / 2, value * 2


def _users(owner: ModuleType, name: str) -> list[ModuleType]:
    """Return the modules that have a number: its own, and those that import it from there."""
    found = [owner]
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith("nccl_inspector.") or module is owner:
            continue
        if name not in vars(module):
            continue
        imports = (
            node for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.ImportFrom) and node.module == owner.__name__
        )  # fmt: skip
        if any(one.name == name for node in imports for one in node.names if not one.asname):
            found.append(module)
    return found


@contextmanager
def changed(owner: ModuleType, name: str, value: float) -> Iterator[None]:
    """Give a number another value for a while, wherever it is used."""
    users, was = _users(owner, name), getattr(owner, name)
    try:
        for one in users:
            setattr(one, name, value)
        yield
    finally:
        for one in users:
            setattr(one, name, was)


@dataclass(frozen=True)
class Kept:
    """A played job, read once."""

    name: str  # of the case, and the seed
    loaded: Any
    given: JobContext
    true: Any

    def judge(self) -> tuple[Card, Grade]:
        """Return its card, and what is right of it."""
        card = build_card(self.loaded, self.given)
        return card, grade(card, self.true)


def in_turns(paths: Sequence[Path], patterns: Sequence[str]) -> list[Path]:
    """Return kept jobs of some cases: the first of each pattern, then the second of each."""
    found: dict[Path, tuple[int, int]] = {}
    for place, pattern in enumerate(patterns):
        some = [one for one in paths if fnmatch.fnmatch(one.stem.rpartition("-")[0], pattern)]
        for turn, one in enumerate(some):
            found.setdefault(one, (turn, place))
    return sorted(found, key=lambda one: found[one])


def read_kept(folder: Path, patterns: Sequence[str], most: int) -> list[Kept]:
    """Return up to `most` of the jobs that `trials --played` kept there, of some cases."""
    found = []
    for path in in_turns(sorted(folder.glob("*.pickle")), patterns)[:most]:
        _, known, true = pickle.loads(path.read_bytes())  # noqa: S301 - trials wrote it
        loaded = load_summaries(JOB_ID, path.with_suffix("") / "reports", None)
        found.append(Kept(path.stem, loaded, JobContext(**known), true))
    return found


def said(card: Card) -> str:
    """Return what a card says that must not depend on a number."""
    verdict = card.verdict
    who = {
        entity.name
        for one in card.findings
        if one.severity != INFO and one.cause
        for entity in one.entities
        if entity.kind in ("rank", "node", "rail", "pair")
    }
    kinds = sorted({one.kind for one in card.stragglers if one.flagged})
    words = [verdict.status, verdict.cause, ", ".join(sorted(who)), ", ".join(kinds)]
    return "; ".join(one for one in words if one)


def _wrongs(found: Grade) -> int:
    rights = (
        found.status_right, found.class_right, found.entity_right, found.cost_right,
        found.late_by_right,
    )  # fmt: skip
    return sum(one is False for one in rights) + bool(found.accused)


def _differ(was: Card, now: Card) -> str:
    """Return how a card differs from another one of the same job; empty: it does not."""
    if said(was) != said(now):
        return f"{said(was)} -> {said(now)}"
    before, after = was.verdict.cost_share or 0.0, now.verdict.cost_share or 0.0
    if abs(after - before) > max(_COST_CHANGES * before, _COST_CHANGES_LEAST):
        return f"cost {before:.1%} -> {after:.1%}"
    return ""


def ask(
    owner: ModuleType, name: str, jobs: Sequence[Kept], base: Mapping[str, tuple[Card, Grade]]
) -> dict[str, Any]:
    """Return what changes in the reports of some jobs with a half and a double of a number.

    `base`: what is said of each job without any change.
    """
    value = getattr(owner, name)
    row: dict[str, Any] = {
        "module": owner.__name__.rpartition(".")[2], "name": name, "value": value,
        "jobs": len(jobs),
    }  # fmt: skip
    for word, other in zip(("half", "double"), halved_and_doubled(value), strict=True):
        changes: list[Change] = []
        with changed(owner, name, other):
            for one in jobs:
                changes += _changes(one, *base[one.name])
        row[word] = {"value": other, "changes": changes}
    return row


def _changes(job: Kept, was: Card, was_right: Grade) -> Iterator[Change]:
    try:
        now, right = job.judge()
    except Exception as err:  # a number that breaks it is a result
        yield {"job": job.name, "what": f"{type(err).__name__}: {err}", "is": "broken"}
        return
    if what := _differ(was, now):
        before, after = _wrongs(was_right), _wrongs(right)
        better = "better" if after < before else "worse" if after > before else "other"
        yield {"job": job.name, "what": what, "is": better}


def _cell(found: dict[str, Any]) -> str:
    kinds = [one["is"] for one in found["changes"]]
    words = [f"{kinds.count(kind)} {kind}" for kind in ("worse", "better", "other", "broken")
             if kind in kinds]  # fmt: skip
    jobs = ", ".join(one["job"] for one in found["changes"][:3])
    more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
    return f"{found['value']:.3g}: {', '.join(words)} ({jobs}{more})" if words else "-"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| number | value | jobs | half | double |", "|---|---|---|---|---|"]
    for row in rows:
        name = f"`{row['module']}.{row['name'].lstrip('_')}`"
        cells = (
            name,
            f"{row['value']:.3g}",
            str(row["jobs"]),
            _cell(row["half"]),
            _cell(row["double"]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "".join(f"{line}\n" for line in lines)


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the page of the documentation."""
    return (
        "# Numbers that judge, halved and doubled\n\n"
        "`python -m tests.simulator.sensitivity` judges simulated jobs again with a number that\n"
        "is half or twice as large, and counts whose reports then say something else: another\n"
        "verdict, another name, another cause, or a cost that differs by 10 %. This page is its\n"
        "output; nobody edits it. Of a share the distance to 0 or 1 is halved or doubled, of a\n"
        "ratio what is above 1. Modules say what their numbers mean and where they come from.\n\n"
        "- *worse*, *better*: more, or less, of the report is wrong than before.\n"
        "- *other*: it differs, and is as right.\n"
        "- `-`: no report changes.\n\n"
        f"{table(rows)}"
    )


def main() -> int:
    """Judge kept jobs with other numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m tests.simulator.sensitivity"
    )
    parser.add_argument("played", type=Path, help="the directory of trials --played")
    parser.add_argument("--numbers", default="*", help="module or module.NAME, with * and ?")
    parser.add_argument("--most", type=int, default=40, help="jobs for each number")
    parser.add_argument("--out", type=Path, required=True, help="all results as JSON")
    parser.add_argument("--table", type=Path, help="the page of the documentation")
    given = parser.parse_args()
    os.nice(5)
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    known = {(row["module"], row["name"]) for row in rows}
    for group in GROUPS:
        wanted = [
            name
            for name in group.names
            if (group.module, name) not in known
            if any(fnmatch.fnmatch(word, given.numbers)
                   for word in (group.module, f"{group.module}.{name}"))
        ]  # fmt: skip
        jobs = read_kept(given.played, group.cases, given.most) if wanted else []
        base = {one.name: one.judge() for one in jobs}
        owner = importlib.import_module(f"{_REPLAY}.{group.module}")
        for name in wanted if jobs else ():
            rows.append(ask(owner, name, jobs, base))
            given.out.write_text(json.dumps(rows, indent=1))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    order = [(group.module, name) for group in GROUPS for name in group.names]
    rows.sort(key=lambda row: order.index((row["module"], row["name"])))
    if given.table:
        given.table.write_text(page(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
