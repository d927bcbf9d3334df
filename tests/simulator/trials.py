# SPDX-License-Identifier: Apache-2.0
"""Play simulated jobs, and count how often their reports are right.

python -m tests.simulator.trials --cases 'gpu-*' --seeds 5
python -m tests.simulator.trials --truth-only       # only what the faults cost
python -m tests.simulator.trials --table packaging/doc/trials.md --out build/trials.json
python -m tests.simulator.trials --before tests/simulator/trials.json.gz    # only what is not there
"""

import argparse
import fnmatch
import gzip
import io
import json
import os
import pickle
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.simulator.cases import CASES, Case, case_of, make
from tests.simulator.consistent import contradictions
from tests.simulator.grade import TIME_ERROR_MAX, grade

Row = dict[str, Any]
_MEMORY = Path("/dev/shm")


def play_case(
    name: str, seed: int, truth_only: bool = False, analyze: bool = False, kept: Path | None = None
) -> Row:
    """Make, play, collect, report and grade one job; what failed is in `error`.

    `kept`: where played jobs are kept, to be judged again.
    """
    began = time.monotonic()
    row: Row = {"case": name, "kind": case_of(name).kind, "seed": seed}
    try:
        if kept is not None:
            row |= _judged_again(name, seed, kept)
        else:
            job, true = make(name, seed)
            row |= _facts(job, true)
            row["simulated_s"] = time.monotonic() - began
            if not truth_only:
                row |= _played(job, true, analyze)
    except Exception:  # a trial that breaks is a result, and the others go on
        row["error"] = traceback.format_exc()
    row["took_s"] = time.monotonic() - began
    return row


def _facts(job: Any, true: Any) -> Row:
    return {
        "ranks": len(job.ranks),
        "nodes": len(job.nodes),
        "wall_s": true.wall_s,
        "operations": sum(len(one.operations) for one in job.ranks),
        "cost_true": true.cost_share,
        "guilty": sorted(name for _, name in true.guilty),
    }


def _judged_again(name: str, seed: int, kept: Path) -> Row:
    """Return the grade of a job's report, which is played only if it was not yet."""
    from nccl_inspector.report.job_context import JobContext
    from tests.simulator.play import given_of, play, report_of

    folder = kept / f"{name}-{seed}"
    facts = kept / f"{name}-{seed}.pickle"
    if not facts.exists():
        job, true = make(name, seed)
        shutil.rmtree(folder, ignore_errors=True)
        with redirect_stderr(io.StringIO()):
            play(job, folder, at_once=1)
        given = given_of(job)
        known = {"record": given.record, "readings": given.readings, "inputs": given.inputs}
        facts.write_bytes(pickle.dumps((_facts(job, true), known, true)))
    row, known, true = pickle.loads(facts.read_bytes())  # noqa: S301 - this program wrote it
    found: Row = row | _judged(report_of(JobContext(**known), folder), true)
    return found


def _judged(card: Any, true: Any) -> Row:
    return asdict(grade(card, true)) | {"contradictions": contradictions(card)}


def _played(job: Any, true: Any, analyze: bool) -> Row:
    from tests.simulator.play import analyzed, card_of, play  # needs the built plugin

    place = _MEMORY if _MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="nccl-inspector-trial-", dir=place))
    try:
        with redirect_stderr(io.StringIO()):  # the collector says who died
            play(job, folder, json=analyze, at_once=1)
            return _judged(analyzed(folder) if analyze else card_of(job, folder), true)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _share(values: Iterable[bool | None]) -> tuple[int, int]:
    known = [one for one in values if one is not None]
    return sum(known), len(known)


def _per_cent(values: Iterable[bool | None]) -> str:
    good, of = _share(values)
    return f"{100 * good / of:.0f} %" if of else "-"


def _line(row: Row) -> str:
    """Return one job's result as a line."""
    head = f"{row['case']:24} {row['seed']:3}"
    if "error" in row:
        return f"{head} ERROR {row['error'].strip().splitlines()[-1]}"
    size = f"{row['ranks']:3} ranks {row['wall_s']:5.0f} s"
    true = f"cost {100 * row['cost_true']:5.2f} %"
    if "status" not in row:
        return f"{head} {size} {true}  {', '.join(row['guilty'])}  {row['took_s']:.1f} s"
    told = "-" if row["cost_told"] is None else f"{100 * row['cost_told']:.2f} %"
    marks = [
        word
        for word, good in (
            ("STATUS", row["status_right"]),
            ("CLASS", row["class_right"]),
            ("ENTITY", row["entity_right"]),
            ("SEVERITY", row["severity_right"]),
            ("PERIOD", row["period_right"]),
            ("COST", row["cost_right"]),
        )
        if good is False
    ]
    if row["accused"]:
        marks.append(f"ACCUSED {'; '.join(row['accused'][:3])}")
    if row.get("contradictions"):
        marks.append(f"SAYS {'; '.join(row['contradictions'][:2])}")
    worst = max((abs(one) for one in row["time_errors"]), default=0.0)
    if worst > TIME_ERROR_MAX:
        marks.append(f"T {100 * worst:.0f} %")
    verdict = f"{row['status']} ({row['cause']})" if row["cause"] else row["status"]
    return (
        f"{head} {size} {true} told {told:8} {verdict:30} {row['took_s']:5.1f} s"
        f"  {' '.join(marks) or 'ok'}"
    )


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


_COLUMNS = (
    "case", "jobs", "innocent accused", "status", "class", "entity", "period", "cost right",
    "true cost", "cost told - true (median, 90 %)", "T error (median, 90 %)",
)  # fmt: skip


def _spread(values: Sequence[float], middle: str = ".1f") -> str:
    """Return the median and what 90 % are not beyond, in per cent."""
    if not values:
        return "-"
    most = _quantile([abs(one) for one in values], 0.9)
    return f"{100 * statistics.median(values):{middle}}, {100 * most:.1f} %"


def _cells(name: str, rows: Sequence[Row]) -> list[str]:
    """Return a case's line of the table."""
    good = [row for row in rows if "error" not in row]
    broken = len(rows) - len(good)
    told = [row for row in good if row["cost_right"] is not None and row["cost_told"] is not None]
    costs = [row["cost_true"] for row in good]
    shares = ("status_right", "class_right", "entity_right", "period_right", "cost_right")
    return [
        name,
        f"{len(good)} ({broken} broken)" if broken else f"{len(good)}",
        _per_cent(bool(row["accused"]) for row in good),
        *(_per_cent(row[key] for row in good) for key in shares),
        f"{100 * min(costs):.1f} to {100 * max(costs):.1f} %" if costs and max(costs) else "-",
        _spread([row["cost_told"] - row["cost_true"] for row in told], "+.1f"),
        _spread([abs(one) for row in good for one in row["time_errors"]]),
    ]


def _grouped(rows: Sequence[Row], key: str) -> Iterator[tuple[str, list[Row]]]:
    for word in dict.fromkeys(row[key] for row in rows):
        yield word, [row for row in rows if row[key] == word]


def _band(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Return the jobs with a fault, by what it costs."""
    faulty = [row for row in rows if row.get("cost_true") and "error" not in row]
    yield "1 to 2 %", [row for row in faulty if 0.01 <= row["cost_true"] < 0.02]
    yield "2 % and more", [row for row in faulty if row["cost_true"] >= 0.02]


def table(rows: Sequence[Row]) -> str:
    """Return the results as a Markdown table."""
    lines = [_COLUMNS, ["---"] * len(_COLUMNS)]
    for name, some in _grouped(rows, "case"):
        lines.append(_cells(name, some))
    for kind, some in _grouped(rows, "kind"):
        lines.append(_cells(f"**all {kind}**", some))
    for words, some in _band(rows):
        if some:
            lines.append(_cells(f"**faults that cost {words}**", some))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(rows: Sequence[Row]) -> str:
    """Return the page of the documentation."""
    healthy = [row for row in rows if row["kind"] == "healthy" and "error" not in row]
    accused = sum(bool(row["accused"]) for row in healthy)
    seeds = {row["seed"] for row in rows} or {0}
    abouts = {one.name: one.about for one in CASES}
    cases = "".join(
        f"| {name} | {abouts.get(name, '')} |\n" for name in dict.fromkeys(r["case"] for r in rows)
    )
    return (
        "# Trials: how often the report is right\n\n"
        "`make trials` simulates jobs rank by rank, plays them through the profiler plugin in\n"
        "virtual time, and compares their reports with what is known of the jobs. This page is\n"
        "its output; nobody edits it. The true cost of a fault is the wall time of the job with\n"
        "the fault, less the wall time of the same job without it.\n\n"
        f"Jobs: {len(rows)}, with the seeds {min(seeds)} to {max(seeds)}. Healthy ones:\n"
        f"{len(healthy)}, of which {accused} "
        f"{'was' if accused == 1 else 'were'} accused.\n\n"
        "- *innocent accused*: jobs with a warning that names an entity without a fault, or\n"
        "  healthy jobs with a wrong verdict.\n"
        "- *status*, *class*, *entity*: the verdict has the right status and the right cause, and\n"
        "  a finding names the culprit, if the job's data can tell the culprit.\n"
        "- *period*: a finding says when, if the fault was not there all the time. The told and\n"
        "  the true period have half of what they cover in common.\n"
        "- *cost right*: the told cost is within 20 % of the true cost, or within half a per cent\n"
        "  of the job.\n"
        "- *T error*: error of the transfer times of the three busiest kinds of operations.\n\n"
        f"{table(rows)}\n## The cases\n\n| case | what it is |\n| --- | --- |\n{cases}"
    )


def _wanted(patterns: str, fast: bool) -> list[Case]:
    return [
        one
        for one in CASES
        if any(fnmatch.fnmatch(one.name, some) for some in patterns.split(","))
        if one.fast or not fast
    ]


def trials(
    cases: Sequence[Case],
    seeds: Sequence[int],
    jobs: int,
    truth_only: bool,
    analyze: bool,
    kept: Path | None,
    known: Container[tuple[str, int]] = (),
) -> Iterator[Row]:
    """Yield the results of all jobs but those that are known: one of each case, then another."""
    todo = [
        (one.name, seed, truth_only, analyze, kept)
        for seed in seeds
        for one in cases
        if (one.name, seed) not in known
    ]
    if todo:
        with ProcessPoolExecutor(jobs) as pool:
            yield from pool.map(play_case, *zip(*todo, strict=True))


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return the rows by case as in CASES, then by seed."""
    place = {one.name: number for number, one in enumerate(CASES)}
    return sorted(rows, key=lambda row: (place[row["case"]], row["seed"]))


def read_rows(path: Path) -> list[Row]:
    """Return the results of an earlier run (`--out`), of cases that there still are."""
    data = path.read_bytes()
    rows: list[Row] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    names = {one.name for one in CASES}
    return [row for row in rows if row["case"] in names and "error" not in row]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write results, packed where the name ends in .gz."""
    text = json.dumps(in_order(rows), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def main() -> int:
    """Run the trials that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.simulator.trials")
    parser.add_argument("--cases", default="*", help="names, with * and ?, divided by commas")
    parser.add_argument("--seeds", type=int, default=3, help="how many of each")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--fast", action="store_true", help="only cases of the short run")
    parser.add_argument("--truth-only", action="store_true", help="simulate, and play nothing")
    parser.add_argument("--analyze", action="store_true", help="by JSON lines and `analyze`")
    parser.add_argument("--out", type=Path, help="all results as JSON; packed if it ends in .gz")
    parser.add_argument(
        "--before", type=Path, metavar="FILE",
        help="the --out of an earlier run of the same code: what is there is not played again",
    )  # fmt: skip
    parser.add_argument("--table", type=Path, help="the page of the documentation")
    parser.add_argument(
        "--played", type=Path, metavar="DIR",
        help="keep what was played here, and judge again what is here: after a change of the "
        "analysis; not of the plugin or the simulator",
    )  # fmt: skip
    given = parser.parse_args()
    if given.played:
        given.played.mkdir(parents=True, exist_ok=True)
    cases = _wanted(given.cases, given.fast)
    if not cases:
        parser.error("no case of that name")
    os.nice(5)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    rows = read_rows(given.before) if given.before else []
    known = {(row["case"], row["seed"]) for row in rows}
    for row in trials(
        cases, seeds, given.jobs, given.truth_only, given.analyze, given.played, known
    ):
        rows.append(row)
        print(_line(row), flush=True)
        if given.out:
            write_rows(given.out, rows)
    rows = in_order(rows)
    if not given.truth_only:
        print(table(rows))
        if given.table:
            given.table.write_text(page(rows))
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
