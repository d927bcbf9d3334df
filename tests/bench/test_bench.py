# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import figure, options
from tests.bench.figure import Figure
from tests.bench.played import Both, Played, play
from tests.bench.sample import Sample, table
from tests.support.repository import BUILD


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


def test_a_figure_keeps_to_its_limit_from_below_or_from_above() -> None:
    assert Figure("x", "ns", 40.0, 40).verdict == "ok"
    assert Figure("x", "ns", 40.1, 40).verdict == "OVER"
    assert Figure("x", "%", 80.0, 80, at_least=True).verdict == "ok"
    assert Figure("x", "%", 79.9, 80, at_least=True).verdict == "OVER"
    assert Figure("x", "ns", 1.0).verdict == ""


def test_the_table_of_figures_names_its_columns_and_has_no_blanks_at_the_end() -> None:
    one = Figure("time", "ns", 50.0, 40, ours=150.0, nothing=100.0, lost=0, vendor="~200")
    head, line = figure.table([one]).split("\n")
    assert "measured elsewhere" in head
    assert line.split() == ["time", "1", "100", "150", "50", "ns", "<=", "40", "OVER", "0", "~200"]
    assert not figure.table([Figure("x", "ns", 1.0)]).endswith(" ")


def test_the_counts_see_a_profiler_that_locks_and_asks_for_the_time(tmp_path: Path) -> None:
    habits = {
        "LD_PRELOAD": str(BUILD / "bench" / "count.so"),
        "LD_LIBRARY_PATH": str(BUILD / "fakecuda"),
        "NCCL_INSPECTOR_DUMP_DIR": "{raw}/out",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "100000",
        "NCCL_INSPECTOR_PROM_DUMP": "0",
    }
    played = play(tmp_path, "counts", ours=BUILD / "nvidia-standin.so", env=habits)
    assert played.one("locks") >= 24
    assert played.one("clocks") >= 40
    assert played.one("locks", "nothing") == played.one("clocks", "nothing") == 0
    assert played.lost == played.told, "what is in no box is lost"


def test_the_least_disturbed_rounds_are_taken_of_both_sides_together() -> None:
    played = Played()
    for ours, nothing in ((9.0, 1.0), (5.0, 2.0), (5.5, 3.0)):
        for _ in range(9):
            played.add(f"x ours {ours}")
            played.add(f"x nothing {nothing}")
    assert played.quietest("x") == Both(5.0, 2.0)
    assert [block.net for block in played.blocks("x", 50)] == [8.0, 3.0, 2.5]


# What issues and design promise. JSON mode's rows are there with JSON mode.
PROMISED = {
    "agent, 8 processes of 250 series: CPU at 30 s",
    "agent, 8 processes of 250 series: peak RSS",
    "application thread per operation, one core",
    "application thread per operation, two cores",
    "application thread per operation, 1,900 in flight",
    "kernel events per channel, 8 channels",
    "kernel events per channel, 32 channels",
    "kernel events per operation, besides",
    "throughput, 1 pair of threads, op/s",
    "throughput, 2 pairs of threads, op/s",
    "throughput, 4 pairs of threads, op/s",
    "operations lost at full speed",
    *(
        f"2,000 op/s, 16 channels: {half} thread, {percentile}"
        for half in ("app", "kernel")
        for percentile in ("p50", "p99")
    ),
    "page faults of both threads meanwhile",
    "locks per operation of 8 channels",
    "clock reads per operation of 8 channels, but of the tick counter",
    "operations lost at 20,000 op/s, prom",
    "last finalize, slowest",
    "last finalize, output blocked, slowest",
    "memory of a process, PSS",
    "memory of a further communicator",
    "memory left by 10,000 communicators",
    "CPU of a .prom dump, per 1440 series",
}


# It plays for half a minute alone, and for minutes where three other tests do.
@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs the hooks as root")
def test_the_bench_measures_everything_that_has_a_limit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--json", "--rounds", "2"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    limits = [row["what"].split(",")[0] for row in found["rows"] if row["limit_ms"]]
    assert set(limits) == {
        "prolog", "epilog", "SPANK callbacks", "publish pass", "node_exporter's scrape",
    }  # fmt: skip
    assert all(row["verdict"] in ("ok", "OVER") for row in found["rows"] if row["limit_ms"])
    assert found["machine"]["cores"] == os.cpu_count()
    figures = {row["what"].partition(" (")[0]: row for row in found["profiler"] if row["verdict"]}
    assert figures.keys() >= PROMISED
    assert all(row["verdict"] in ("ok", "OVER") for row in figures.values())
    assert not [row["what"] for row in figures.values() if row["lost"]]


@pytest.mark.long
def test_what_an_option_costs_is_measured_of_operations_that_are_all_known(tmp_path: Path) -> None:
    figures = {one.what: one for one in options.measure(tmp_path, 9)}
    assert all(one.ours and one.nothing for one in figures.values())
    assert not any(one.lost for one in figures.values())
    followed, whole = (one for what, one in figures.items() if what.startswith("net=on"))
    # The proxy's calls are most of what is played; of few operations hardly any are made.
    assert (followed.ours or 0) < (whole.ours or 0)
