# SPDX-License-Identifier: Apache-2.0
"""Whole logs: the facts of each release's, the first error of a cascade, what processes differ in.

`logs/` is composed by NCCL's documented grammar: a job of two nodes by each release, and jobs with
one fault each.
"""

from pathlib import Path

import pytest

from nccl_inspector.nccl_log.catalogue import load_catalogue
from nccl_inspector.nccl_log.files import read_logs
from nccl_inspector.nccl_log.judge import LogReport
from tests.unit.nccl_log.made_logs import PLACE, facts, findings, judged, report

RELEASES = sorted(path.stem.removeprefix("nccl-") for path in PLACE.glob("nccl-*.log"))


def test_there_is_a_log_of_each_release_since_2_23() -> None:
    minors = {tuple(map(int, one.split(".")[:2])) for one in RELEASES}
    assert minors == {(2, minor) for minor in range(23, 33)}


@pytest.mark.parametrize("release", RELEASES)
def test_the_log_of_each_release_gives_the_same_facts_and_no_finding(release: str) -> None:
    found = report(f"nccl-{release}")
    assert facts(found) == {
        "library": {f"NCCL {release}+cuda13.0": 4},
        "CUDA driver": {"13.0": 4},
        "network": {"IB": 4},
        "adapters": {"2 (IB)": 4},
        "GPUDirect RDMA": {"on": 4},
        "NVLS": {"on": 4},
        "interface": {"ib0": 4},
        "channels": {"P2P/CUMEM": 8, "NET/IB/GDRDMA": 8},
        "largest communicator": {"4 ranks on 2 nodes": 4},
        "set-up": {"1.80 s (longest)": 1},
    }
    assert findings(found) == {}
    assert found.first is None
    assert (found.processes, found.hosts, found.worst) == (4, ("n1", "n2"), None)


def test_rccls_log_is_read_as_nccls() -> None:
    found = report("rccl-2.27.7")
    assert facts(found)["library"] == {"RCCL 2.27.7+hip7.1": 4}
    assert findings(found) == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "fallback-of-one-node",
            {
                "network-fallback": "n2 (2 processes)",
                "network-differs": "n2 (2 processes)",
                "ib-none": "n2 (2 processes)",
            },
        ),
        (
            "sockets-as-asked",
            {
                "network-chosen-slow": "rank 0 (n1), rank 1 (n1), rank 2 (n2), rank 3 (n2)",
                "ib-none": "n1 (2 processes), n2 (2 processes)",
                "path-disabled": "rank 0 (n1), rank 1 (n1), rank 2 (n2), rank 3 (n2)",
            },
        ),
        (
            "host-memory",
            {
                "shm-within-node": "rank 0 (n1), rank 2 (n2)",
                "gdr-unused": "n1 (2 processes), n2 (2 processes)",
            },
        ),
        (
            "one-rank-never-came",
            {
                "init-incomplete": "rank 0 (n1), rank 1 (n1), rank 2 (n2)",
                "bootstrap-interface": "rank 0 (n1)",
            },
        ),
        (
            "environment-differs",
            {
                "environment-differs": "rank 3 (n2)",
                "nvls-differs": "rank 3 (n2)",
                "ib-timeout-long": "rank 0 (n1), rank 1 (n1), rank 2 (n2), rank 3 (n2)",
                "tuned-by-hand": "rank 0 (n1), rank 1 (n1), rank 2 (n2)",
            },
        ),
        ("two-versions", {"versions-differ": "rank 2 (n2), rank 3 (n2)"}),
        # As NCCL 2.29.7 itself wrote it, without a GPU; only host and address are others.
        ("no-driver", {"driver-insufficient": "pid 4711 (n1)"}),
        ("desync", {"watchdog-failed": "rank 0", "desync-report": "rank 2, rank 3"}),
        ("torn", {"too-many-files": "pid 4000 (n1)"}),
        ("pytorch-only", {"socket-refused": "rank 3", "nccl-exception": "rank 3"}),
    ],
)
def test_a_log_with_a_fault_gives_its_findings_and_no_others(
    name: str, expected: dict[str, str]
) -> None:
    assert findings(report(name)) == expected


def test_the_rank_that_never_came_is_named() -> None:
    found = next(one for one in report("one-rank-never-came").findings if one.lines == 0)
    assert found.detail.endswith("no line says that rank 3 began")


def test_a_cascade_is_one_error_and_how_many_followed() -> None:
    found = report("cascade")
    first = found.first
    assert first is not None
    assert (first.rule.id, first.who) == ("ib-retry-exceeded", "rank 5 (n2)")
    assert (first.followers, first.certain) == (7, True)
    assert first.within_s == pytest.approx(2.45)
    assert next(iter(findings(found))) == "ib-retry-exceeded"
    assert findings(found)["rank-behind"] == "rank 5 (n2)"


def _warnings(*heads: str) -> LogReport:
    return judged("".join(f"{head} NCCL WARN Too many open files\n" for head in heads))


def test_of_errors_in_the_same_second_nobody_is_called_the_first() -> None:
    at = "[2026-11-25 10:11:12]"
    first = _warnings(f"{at} n1:1:1 [0] a.cc:1", f"{at} n2:2:2 [0] a.cc:1").first
    assert first is not None
    assert first.who == "pid 1 (n1) or pid 2 (n2)"


def test_the_earliest_time_is_the_first_whatever_the_order_of_lines() -> None:
    heads = [f"[2026-11-25 10:11:{at}] n{rank}:{rank}:1 [0] a.cc:1" for rank, at in
             ((1, "14.500"), (2, "12.250"), (3, "13.000"))]  # fmt: skip
    first = _warnings(*heads).first
    assert first is not None
    assert (first.who, first.followers, first.within_s) == ("pid 2 (n2)", 2, 2.25)


def test_without_times_the_order_of_one_file_counts() -> None:
    first = _warnings("n2:2:2 [0] a.cc:1", "n1:1:1 [0] a.cc:1").first
    assert first is not None
    assert (first.who, first.followers, first.within_s) == ("pid 2 (n2)", 1, None)


def test_without_times_nobody_is_the_first_of_several_files(tmp_path: Path) -> None:
    for at in (1, 2):
        (tmp_path / f"{at}.log").write_text(f"n{at}:{at}:1 [0] NCCL WARN Too many open files\n")
    assert read_logs([tmp_path]).first is None


def test_processes_of_containers_with_one_pid_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for task in range(3):
        path = tmp_path / f"nccl.4711.0.0.{task}.n1.1.log"
        path.write_text("n1:1:1 [0] NCCL WARN Too many open files\n")
    found = read_logs([tmp_path])
    assert findings(found) == {"too-many-files": "task 0 (n1), task 1 (n1), task 2 (n1)"}


def test_a_difference_of_processes_is_found_for_each_rule_that_compares() -> None:
    """What no log above shows."""
    lines = []
    for rank in range(4):
        head = f"n{rank // 2}:{rank}:9 [0] NCCL INFO "
        comm = f"comm 0xa{rank} rank {rank} nranks 4 cudaDev 0 busId 1 commId 0xb -"
        adapters = "[0]a_0:1/IB" if rank == 3 else "[0]a_0:1/IB [1]a_1:1/RoCE"
        speed = 200000 if rank == 3 else 400000
        bootstrap = 0.5 if rank == 3 else 40.5
        lines += [
            f"{head}NET/IB : Using {adapters} [RO]; OOB ib0:10.1.0.7<0>",
            f"{head}NET/IB: [0] a_0:uverbs0:1/IB provider=Mlx5 speed={speed} context=0x1",
            f"{head}Init timings - ncclCommInitRank: rank {rank} nranks 4 total 41.00 "
            f"(kernels 0.28, bootstrap {bootstrap:.2f}, rest 0.04)",
            *(f"{head}ncclCommInitRank {comm} Init {word}" for word in ("START", "COMPLETE") * 60),
        ]
    found = {one.rule.id: (one.who, one.detail) for one in judged("\n".join(lines)).findings}
    assert found["hcas-differ"] == ("rank 3 (n1)", "processes by number of adapters: 1: 1, 2: 3")
    assert found["hca-speeds-differ"] == ("rank 3 (n1)", "n1 a_0: 200 Gb/s; others: 400 Gb/s")
    assert found["hca-layers-mixed"][1] == "a_0:1/IB, a_1:1/RoCE"
    assert "rank 3 (n1) met the others last" in found["init-slow"][1]
    assert found["many-communicators"][1] == "up to 60 in one process"


def test_each_rule_that_compares_is_found_in_some_log() -> None:
    seen = {name for path in PLACE.glob("*.log") for name in findings(report(path.stem))}
    seen |= {"hcas-differ", "hca-speeds-differ", "hca-layers-mixed", "init-slow"}
    seen |= {"many-communicators"}  # the test above
    seen |= {"shm-unmade"}  # test_told_by_others.py
    rules = load_catalogue().rules
    assert {name for name, rule in rules.items() if rule.known == "compared"} <= seen
