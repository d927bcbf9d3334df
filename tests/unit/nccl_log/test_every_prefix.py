# SPDX-License-Identifier: Apache-2.0
"""Whatever a launcher or collector puts before lines, and however 64 processes write between each
other: every line is its own process's, and equal times put nobody first."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.reader import LogReader

_TABLE = Path(__file__).with_name("lines.tsv").read_text("ascii").splitlines()
LINES = [line.split("\t") for line in _TABLE if not line.startswith("#")]
RANKS = 64
_ISO = "2026-11-25T10:11:12.123456789Z"
# rank, host, line -> what a launcher makes of it
PREFIXES: dict[str, Callable[[int, str, str], str]] = {
    "none": lambda _rank, _host, line: line,
    "srun --label": lambda rank, _host, line: f"{rank}: {line}",
    "mpirun --tag-output": lambda rank, _host, line: f"[1,{rank}]<stdout>:{line}",
    "prterun": lambda rank, _host, line: f"[prterun-n0-4711@1,{rank}]<stdout>: {line}",
    "mpirun --timestamp": lambda _rank, _host, line: f"Wed Nov 25 10:11:12 2026<stdout>:{line}",
    "hydra": lambda rank, _host, line: f"[{rank}] {line}",
    "torchrun": lambda rank, _host, line: f"[rank{rank}]: {line}",
    "torchrun default": lambda rank, _host, line: f"[default{rank % 8}]:{line}",
    "ray": lambda rank, _host, line: f"(RayWorkerWrapper pid={4000 + rank}, ip=10.1.0.9) {line}",
    "ray twice": lambda rank, _host, line: f"(Engine pid=7) (Worker[rank={rank}] pid=9) {line}",
    "colours": lambda rank, _host, line: f"\x1b[36m(Worker pid={rank})\x1b[0m {line}\x1b[0m",
    "kubectl --prefix": lambda rank, _host, line: f"[pod/worker-{rank}/pytorch] {line}",
    "kubectl --timestamps": lambda _rank, _host, line: f"{_ISO} {line}",
    "CRI": lambda _rank, _host, line: f"{_ISO} stdout F {line}",
    "CloudWatch": lambda _rank, _host, line: f"  | 2026-11-25T10:11:12.123-07:00 | {line}",
    "CloudWatch, glued": lambda _rank, _host, line: f"2026-11-25T10:11:12.123-07:00{line}",
    "glued, UTC": lambda _rank, _host, line: f"{_ISO}{line}",
    "journal": lambda rank, host, line: f"Nov 25 10:11:12 {host} train[{rank + 7}]: {line}",
    "Python's logging": lambda _rank, _host, line: f"[2026-11-25 10:11:12,123] [INFO] {line}",
    "pdsh": lambda _rank, host, line: f"{host}: {line}",
    "pdsh twice": lambda _rank, host, line: f"{host}: {host}: {line}",
    "DeepSpeed": lambda rank, _host, line: f"worker-{rank // 8}: {line}",
    "quoted": lambda _rank, _host, line: f"> {line}",
    "box": lambda _rank, _host, line: f"│ {line}{' ' * 20}│",
    "docker": lambda _rank, _host, line: json.dumps(
        {"log": f"{line}\n", "stream": "stdout", "time": _ISO}
    ),
    "windows": lambda _rank, _host, line: f"{line}\r",
}  # fmt: skip


def _judge(lines: list[str]) -> LogReport:
    reader = LogReader()
    data = "\n".join([*lines, ""]).encode()
    reader.read("job.out", [data[at : at + 4096] for at in range(0, len(data), 4096)], 2026)
    return judge_log(reader.log)


def _head(rank: int) -> tuple[str, str, int]:
    host = f"gpu-{rank // 8:02d}"
    return host, f"{host}:{4000 + rank}:{9000 + rank} [{rank % 8}]", 4000 + rank


@pytest.mark.parametrize("name", PREFIXES)
def test_each_warning_is_its_own_process_s_through_every_prefix(name: str) -> None:
    """All warnings of the catalogue, each by another of 64 processes, shuffled."""
    chance = Random(name)  # noqa: S311 - no secret
    said: dict[str, set[str]] = {}
    streams: list[list[str]] = [[] for _ in range(RANKS)]
    for rank in range(RANKS):
        host, head, _ = _head(rank)
        comm = f"comm 0x{rank + 1:x} rank {rank} nranks {RANKS} cudaDev 0 busId 1 commId 0xb -"
        streams[rank] += [
            f"{head} NCCL INFO ncclCommInitRank {comm} Init {word}"
            for word in ("START", "COMPLETE")
        ]
    loud = [row for row in LINES if " NCCL WARN " in row[2] and "\\n" not in row[2]]
    for at, (rule, _, line, _) in enumerate(loud):
        rank = (at * 7) % RANKS
        host, head, _ = _head(rank)
        site, _, message = line.partition(" NCCL WARN ")
        place = site.partition("] ")[2]
        streams[rank].append(f"{head} {place} NCCL WARN {message}")
        said.setdefault(rule, set()).add(f"rank {rank} ({host})")
    left = [rank for rank in range(RANKS) for _ in streams[rank]]
    chance.shuffle(left)
    lines = [PREFIXES[name](rank, _head(rank)[0], streams[rank].pop(0)) for rank in left]
    found = _judge(lines)
    assert found.processes == RANKS
    assert found.hosts == tuple(f"gpu-{at:02d}" for at in range(RANKS // 8))
    named: dict[str, set[str]] = {}
    for one in found.findings:
        if one.lines:
            named.setdefault(one.rule.id, set()).update(one.names)
    # Each rule knows one release; a text of another one is a warning all the same.
    assert set(named) - {"warning"} <= set(said)
    for rule, names in named.items():
        assert rule == "warning" or names <= said[rule]
    assert set().union(*named.values()) == set().union(*said.values())


@pytest.mark.parametrize("name", PREFIXES)
def test_a_rank_that_is_behind_is_that_rank_through_every_prefix(name: str) -> None:
    """64 ranks in eight groups of one name; in each of the first three one rank is behind."""
    chance = Random(name)  # noqa: S311 - no secret
    behind = {5, 11, 22}
    lines = []
    for rank in range(RANKS):
        count, done = (99, 98) if rank in behind else (105, 99)
        clock = f"E1125 10:11:12.{chance.randrange(10**9):09d}"
        text = (
            f"[rank{rank}]:[{clock} ProcessGroupNCCL.cpp:2241] [PG ID 5 PG GUID {40 + rank // 8}"
            f"(TENSOR_PAR) Rank {rank % 8}]  failure detected by watchdog at work sequence id: "
            f"{done + 1} PG status: last enqueued work: {count}, last completed work: {done}"
        )
        lines.append(PREFIXES[name](rank, _head(rank)[0], text))
    chance.shuffle(lines)
    found = [one for one in _judge(lines).findings if one.rule.id == "rank-behind"]
    assert {name for one in found for name in one.names} == {f"rank {rank}" for rank in behind}


def test_no_finding_depends_on_the_order_of_equal_times() -> None:
    at = "[2026-11-25 10:11:12]"
    lines = []
    for rank in range(RANKS):
        _, head, _ = _head(rank)
        rows = [row for row in LINES if " NCCL WARN " in row[2] and "\\n" not in row[2]]
        message = rows[rank % len(rows)][2].partition(" NCCL WARN ")[2]
        lines.append(f"{at} {head} a.cc:1 NCCL WARN {message}")
    seen = set()
    for seed in range(8):
        Random(seed).shuffle(lines)  # noqa: S311 - no secret
        found = _judge(lines)
        assert found.first is not None
        seen.add(
            (
                found.first.who,
                tuple(
                    sorted((one.key, one.who, one.severity, one.lines) for one in found.findings)
                ),
            )
        )
    assert len(seen) == 1
