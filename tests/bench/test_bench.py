# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys

import pytest

from tests.bench.sample import Sample, table


def test_a_verdict_is_of_the_net_median() -> None:
    times = [1.0, 2.0, 3.0, 4.0, 99.0]
    assert Sample("x", times, limit_ms=2.0, base_ms=1.0).verdict == "ok"
    assert Sample("x", times, limit_ms=2.0, base_ms=0.9).verdict == "OVER"
    assert Sample("x", times).verdict == ""


def test_the_percentile_is_one_of_the_times() -> None:
    assert Sample("x", [float(i) for i in range(1, 101)]).p95_ms == 95
    assert Sample("x", [7.0]).p95_ms == 7


def test_the_table_has_a_line_for_each_and_no_blanks_at_the_end() -> None:
    lines = table([Sample("short", [1.0]), Sample("a longer one", [2.0], 1.0, 0.5)]).split("\n")
    assert len(lines) == 3
    assert lines[2].endswith("OVER")
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs the hooks as root")
def test_the_bench_measures_everything_that_has_a_limit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--json", "--rounds", "2"],
        capture_output=True,
        check=True,
    )
    found = json.loads(done.stdout)
    limits = [row["what"].split(",")[0] for row in found["rows"] if row["limit_ms"]]
    assert set(limits) == {"prolog", "epilog", "SPANK callbacks"}
    assert all(row["verdict"] in ("ok", "OVER") for row in found["rows"] if row["limit_ms"])
    assert found["machine"]["cores"] == os.cpu_count()
