# SPDX-License-Identifier: Apache-2.0
"""Whatever a launcher or collector puts before lines, and however 64 processes write between each
other: every line is its own process's, and equal times put nobody first."""

from pathlib import Path
from random import Random

import pytest

from nccl_inspector.nccl_log.judge import LogReport, judge_log
from nccl_inspector.nccl_log.reader import LogReader
from tests.unit.nccl_log.line_forms import PREFIXES

_TABLE = Path(__file__).with_name("lines.tsv").read_text("ascii").splitlines()
LINES = [line.split("\t") for line in _TABLE if not line.startswith("#")]
RANKS = 64


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
