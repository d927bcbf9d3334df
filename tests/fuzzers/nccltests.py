# SPDX-License-Identifier: Apache-2.0
"""Outputs of nccl-tests, text and JSON, and files of earlier probes: read, judged and told."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.errors import InspectorError
from nccl_inspector.probe.baseline import Expectation, expectation_of, read_results
from nccl_inspector.probe.judge import judge_probe, judge_run, worst_exit_code
from nccl_inspector.probe.nccl_tests import read_output
from nccl_inspector.probe.result import Cell, Kind, ProbeResult, Row, to_json
from nccl_inspector.probe.text import probe_json, render_probe, render_runs, runs_json
from tests.fuzzers import mutation
from tests.fuzzers.forms import check_text, expect
from tests.fuzzers.target import Budget, Run, Target
from tests.support.nccl_tests_output import VERSIONS, json_text, output

_COLUMNS = 80
_KIND = Kind("tcp", "AllReduce", 3, 3)
_EXPECTED = Expectation(100.0, "--expect")
_NODES = ("n1", "n2", "n3")


def _probes() -> bytes:
    row = Row(1 << 20, 20, 4, 0.005, 0.004, 0.2, 0.3)
    cells = tuple(Cell(a, b, 1.5) for a in _NODES for b in _NODES if a != b)
    result = ProbeResult(_KIND, 1_795_000_000, _NODES, (row, row), cells, "", (), ("a note",))
    return 2 * (json.dumps(to_json(result)).encode() + b"\n")


@cache
def _seeds() -> list[bytes]:
    texts = [output(version, timestamps=at == 1) for at, version in enumerate(VERSIONS)]
    return [*(text.encode() for text in texts), json_text().encode(), _probes()]


def prepare(place: Path) -> Run:
    """Return what reads a file as both, and tells of it in each form."""
    path = place / "out.txt"

    def tests() -> str:
        try:
            runs = read_output(path)
        except InspectorError as err:
            check_text("probe --read", f"{err}\n")
            return "no table"
        judged = [(run, judge_run(run, _EXPECTED, 0.9)) for run in runs]
        check_text("probe --read", render_runs(judged, _COLUMNS))
        expect(len(json.loads(json.dumps(runs_json(judged)))) == len(runs), "--json", "not all")
        rows = sum(len(run.rows) for run in runs)
        return f"{worst_exit_code([one for _, one in judged])} {len(runs)} tables, {rows} rows"

    def probes() -> str:
        try:
            results = read_results(path)
        except InspectorError as err:
            check_text("probe --baseline", f"{err}\n")
            return "no probes"
        expected = expectation_of(results, _KIND, path)
        for result in results:
            judged = judge_probe(result, expected, 0.9)
            check_text("probe", render_probe(result, judged, _COLUMNS))
            json.dumps(probe_json(result, judged))
        return f"{len(results)} probes, {expected is not None}"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        return f"{tests()}; {probes()}"

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return another file."""
    return mutation.several(chance, data, corpus, mutation.TEXT)


TARGET = Target("nccltests", _seeds, mutate, prepare, Budget(cpu_s=0.2), most_bytes=1 << 20)
