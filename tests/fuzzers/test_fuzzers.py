# SPDX-License-Identifier: Apache-2.0
"""The fuzzers of the Python side, briefly and always the same; `make fuzz` takes its time."""

import json
import pickle
import re
from calendar import timegm
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nccl_inspector.agent.nvidia import file as vendorfile
from nccl_inspector.analysis.slow_times import throughput
from nccl_inspector.box import rows as boxrows
from nccl_inspector.capture import restore
from nccl_inspector.exposition import process_file as processfile
from nccl_inspector.flight import dump as flight_dump
from nccl_inspector.model.process import Comm
from nccl_inspector.nccl_log import lines as nccl_lines
from nccl_inspector.probe import nccl_tests
from nccl_inspector.prometheus import api as promapi
from nccl_inspector.ras import status as ras_status
from nccl_inspector.render import json as schema
from nccl_inspector.slurm import accounting
from nccl_inspector.summary import checked_rows as summaryrows
from nccl_inspector.system.checked_json import Checks
from tests.fuzzers import seeds
from tests.fuzzers.campaign import Campaign, SeedFailsError, judged, measured
from tests.fuzzers.catalog import TARGETS, find
from tests.fuzzers.summary import put_together, take_apart
from tests.fuzzers.target import Budget, Read, Run, Target
from tests.fuzzers.worker import Result, Worker, run_all

# Together they take longer than `make test` has for one subject.
pytestmark = pytest.mark.long

SEED = 4
RUNS = {
    "box": 40, "summary": 40, "page": 300, "vendorpage": 100, "stored": 60, "output": 40,
    "logs": 100, "prometheus": 60, "slurm": 60, "lines": 4, "files": 400, "flight": 60,
    "ras": 400, "nccltests": 200,
}  # fmt: skip
PLANT_S = 30.0  # until a planted defect must be found


@pytest.mark.parametrize("name", [one.name for one in TARGETS])
def test_no_input_of_somebody_else_breaks_a_reader_or_an_output(tmp_path: Path, name: str) -> None:
    outcome = Campaign(find([name])[0], SEED, tmp_path).run(60, RUNS[name])
    failures = outcome.failures.values()
    assert not failures, "\n".join(f"{one.line}\n{one.result.words}" for one in failures)
    assert outcome.runs == RUNS[name]
    assert len(outcome.ways) > 1


def same(value: Any, *_: Any) -> Any:
    return value


def no_check(*_: Any) -> None:
    return None


def unchecked_row(cls: Any, row: Any) -> Any:
    return cls(*row)


def naive_rows(output: str, columns: list[str], delimiter: str) -> list[dict[str, str]]:
    rows = [row.split(delimiter) for row in output.split("\n") if row]
    return [dict(zip(columns, row, strict=False)) for row in rows]


def unchecked_seconds(parts: tuple[bytes, ...], _fraction: bytes | None) -> float:
    return float(timegm(tuple(int(part) for part in parts)))


def unchecked_perf_row(words: list[str], _heading: Any, line: int) -> nccl_tests.PerfRow:
    time_us, alg_gbs, bus_gbs = map(float, words[-4:-1])
    figure = nccl_tests.PerfFigure("", time_us, alg_gbs, bus_gbs, 0)
    return nccl_tests.PerfRow(int(words[0]), line, (figure,))


# In time that is cubic in the length of a run of blanks.
SLOW = r"per GPU\s*:\s*\s*~?\s*(?P<value>\d+)\s*(?P<unit>[A-Za-z][\w/.]*)"
# A check of the product's taken away: whose target must see it.
PLANTED: dict[str, tuple[Any, str, Any]] = {
    "box": (boxrows, "_is_key", lambda *_: True),
    "summary": (summaryrows, "take_row", unchecked_row),
    "page": (processfile, "check_value", no_check),
    "vendorpage": (vendorfile, "check_value", no_check),
    "stored": (schema, "_number", same),
    "output": (throughput, "BUILT_IN", (SLOW,)),
    "logs": (nccl_lines, "utc_seconds", unchecked_seconds),
    "prometheus": (promapi, "_NOT_AN_ANSWER", (ValueError,)),
    "slurm": (accounting, "read_rows", naive_rows),
    "lines": (restore, "_object", json.loads),
    "flight": (flight_dump, "read_pickle", pickle.loads),
    "ras": (ras_status, "_list", same),
    "nccltests": (nccl_tests, "_row", unchecked_perf_row),
    "files": (Checks, "load", lambda _, data: json.loads(data)),
}


@pytest.mark.long
@pytest.mark.parametrize("name", [one.name for one in TARGETS])
def test_a_check_that_is_taken_away_is_missed_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    holder, word, instead = PLANTED[name]
    seeds.played("healthy")  # before the check is gone
    monkeypatch.setattr(holder, word, instead)
    campaign = Campaign(find([name])[0], SEED, tmp_path)
    try:
        outcome = campaign.run(PLANT_S, until_failure=True)
    except SeedFailsError:
        return  # it is missed even sooner
    assert outcome.failures, outcome.row


def grow(_: bytes) -> str:
    return str(len(bytearray(120 << 20)))


def burn(_: bytes) -> str:
    # No signal handler of Python's runs in there.
    return str(re.fullmatch(r"(a*)*b", "a" * 60))


def obey(_: bytes) -> str:
    raise ValueError("zz9")


@pytest.mark.parametrize(("what", "kind"), [(grow, "memory"), (burn, "cpu"), (obey, "exception")])
def test_an_input_that_costs_too_much_or_raises_is_a_failure(
    tmp_path: Path, what: Callable[[bytes], str], kind: str
) -> None:
    """The seed is harmless; what is bad begins with another byte."""

    def prepare(_place: Path) -> Run:
        return lambda data: what(data) if data[:1] == b"!" else "well"

    def mutate(chance: Random, _data: bytes, _corpus: object) -> bytes:
        return chance.choice((b"!x", b"well"))

    target = Target("planted", lambda: [b"well"], mutate, prepare, Budget(cpu_s=0.5))
    outcome = Campaign(target, SEED, tmp_path).run(20, 10, until_failure=True)
    (failure,) = outcome.failures.values()
    assert failure.result.kind == kind
    assert failure.saved.read_bytes() == b"!x"
    assert {*outcome.ways} <= {"well"}


def test_what_is_made_of_an_input_is_made_of_each_new_way_and_of_some_others(
    tmp_path: Path,
) -> None:
    def prepare(_place: Path) -> Run:
        return lambda data: Read(f"begins with {data[:1]!r}", lambda: "and is whole")

    def mutate(chance: Random, _data: bytes, _corpus: object) -> bytes:
        return chance.choice((b"a", b"b", b"c")) + bytes([chance.randrange(256)]) * 9

    target = Target("staged", lambda: [b"a"], mutate, prepare, rest_of=10)
    first, second = (Campaign(target, SEED, tmp_path).run(30, 300) for _ in range(2))
    assert first.ways == second.ways, "an input decides for itself"
    assert 3 <= first.whole <= 90
    assert {way for way in first.ways if way.endswith("whole")} == {
        f"begins with b'{one}' and is whole" for one in "abc"
    }
    assert run_all(target, [b"a1", b"a2"])[1].whole, "one that is run again is run as a whole"


def test_the_same_seed_gives_the_same_inputs(tmp_path: Path) -> None:
    target = find(["files"])[0]
    first, second = (Campaign(target, SEED, tmp_path).run(30, 200) for _ in range(2))
    assert first.ways == second.ways


# What Slurm says of the job bounds the cost of its report, whatever boxes claim.


def claiming(nranks: int) -> bytes:
    """A summary of the job that hangs, all of whose communicators claim so many ranks."""
    head, parts, blocks = take_apart(seeds.played("hung").summaries["n1.0.nodesummary"])
    place = [one.name for one in fields(Comm)].index("nranks")
    for pieces in blocks:
        meta = json.loads(pieces[0])
        for row in meta[4]:
            row[place] = nranks
        pieces[0] = json.dumps(meta).encode()
    return put_together(head, parts, blocks)


def crowded(times: int) -> bytes:
    """A summary with so many times the processes that Slurm says there are tasks."""
    head, parts, blocks = take_apart(seeds.played("late").summaries["n1.0.nodesummary"])
    return put_together(head, parts, blocks * times)


def cost_of(data: bytes) -> Result:
    """What the report of a job of four tasks costs, judged by what its honest summaries cost."""
    target = find(["summary"])[0]
    with Worker(target) as worker:
        limits = measured(target, worker, target.seeds())
        return judged(worker, data, limits)


@pytest.mark.parametrize(
    ("make", "times"),
    [
        pytest.param(claiming, 4096, id="4096 ranks", marks=pytest.mark.long),
        pytest.param(claiming, 2**31 - 1, id="2^31-1 ranks"),
        pytest.param(crowded, 8, id="8 times the tasks"),
        pytest.param(crowded, 128, id="128 times the tasks", marks=pytest.mark.long),
    ],
)
def test_the_cost_of_a_report_is_bounded_by_what_slurm_says_of_the_job(
    make: Callable[[int], bytes], times: int
) -> None:
    result = cost_of(make(times))
    assert result.kind == "ok", result.words
