# SPDX-License-Identifier: Apache-2.0
"""What nccl-tests and rccl-tests print, composed by the formats of their sources.

NVIDIA/nccl-tests src/common.cu (2.0 to 2.16) and src/util.cu (2.17 on); ROCm/rccl-tests
src/common.cu. The figures are made up, and follow from each other.
"""

import json
from collections.abc import Sequence
from typing import Any

RANKS = 8
SIZES = (1 << 20, 64 << 20, 1 << 30)
ALG_GBS = (20.0, 150.0, 200.0)
FACTOR = 2 * (RANKS - 1) / RANKS
BEST_GBS = 350.0
OLD, V13, NEW, PER_ITERATION, RCCL = "2.11", "2.13", "2.19", "2.19 -I 1", "rccl"
VERSIONS = (OLD, V13, NEW, PER_ITERATION, RCCL)
_TIME_COLUMNS = ("time", "algbw", "busbw")


def _devices(version: str, hosts: Sequence[str]) -> list[str]:
    group = " Group  0" if version in (NEW, PER_ITERATION) else ""
    each = RANKS // len(hosts)
    return [
        f"#  Rank {rank:2d}{group} Pid {4000 + rank:6d} on {hosts[rank // each]:>10s} "
        f"device {rank % each:2d} [0x1b] NVIDIA H100 80GB HBM3"
        for rank in range(RANKS)
    ]


def _heading(version: str, columns: Sequence[str]) -> str:
    last = "error" if version == OLD else "#wrong"
    more = ("i_min", "i_max", "i_p99", "i_cv%") if version == PER_ITERATION else ()
    figures = (*_TIME_COLUMNS, last, *more)
    return "# " + "  ".join(
        f"{word:>7s}" for word in ("size", "count", "type", *columns, *figures, *figures)
    )


def _figures(version: str, size: int, alg_gbs: float, wrong: str) -> str:
    time_us = size / alg_gbs / 1e3
    more = "".join(f"  {value:7.2f}" for value in (time_us, time_us * 1.1, time_us, 3.1))
    return (
        f"  {time_us:7.1f}  {alg_gbs:6.2f}  {alg_gbs * FACTOR:6.2f}  {wrong:>5s}"
        f"{more if version == PER_ITERATION else ''}"
    )


def output(
    version: str,
    *,
    wrong: str = "",
    hosts: Sequence[str] = ("n1", "n2"),
    timestamps: bool = False,
    whole: bool = True,
) -> str:
    """The output of all_reduce_perf with 8 GPUs; `wrong`: the last word of the last row."""
    columns = ("redop",) if version == OLD else ("redop", "root")
    none = "0e+00" if version == OLD else "0"
    lines = []
    if version in (NEW, PER_ITERATION):
        lines += [
            "# nccl-tests version 2.19.6 nccl-headers=22907 nccl-library=22907",
            "# Collective test starting: all_reduce_perf",
        ]
    lines.append(
        "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 1073741824 step: 2(factor) warmup iters: 5 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0"
    )
    lines += ["#", *(["rccl-tests: Version develop:ae3e635"] if version == RCCL else [])]
    lines += ["# Using devices", *_devices(version, hosts), "#"]
    lines += ["#" + " " * 60 + "out-of-place" + " " * 23 + "in-place", _heading(version, columns)]
    lines.append("# " + " " * 7 + "(B)    (elements)" + " " * 30 + "(us)  (GB/s)  (GB/s)")
    for size, alg_gbs in zip(SIZES, ALG_GBS, strict=True):
        said = wrong if wrong and size == SIZES[-1] else none
        root = "" if version == OLD else f"  {-1:6d}"
        stamp = f"{'2026-07-09 12:00:00':>21s}" if timestamps else ""
        both = _figures(version, size, alg_gbs * 0.9, none) + _figures(version, size, alg_gbs, said)
        lines.append(f"{size:12d}  {size // 4:12d}  {'float':>8s}  {'sum':>6s}{root}{both}{stamp}")
    if whole:
        count = int(wrong) if wrong.isdigit() else 0
        lines += [
            f"# Out of bounds values : {count} {'FAILED' if count else 'OK'}",
            "# Avg bus bandwidth    : 204.694 ",
            "#",
        ]
    return "\n".join(lines) + "\n"


def json_output(**changes: Any) -> dict[str, Any]:
    """The value in the file that `-J` writes (version 3)."""
    rows = [
        {
            "size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
            "out_of_place": {"time": size / alg / 1e3, "alg_bw": alg, "bus_bw": alg * FACTOR,
                             "nwrong": 0.0},
            "in_place": None, "actual_iterations": 20, "experiment_name": "all_reduce_perf",
        }
        for size, alg in zip(SIZES, ALG_GBS, strict=True)
    ]  # fmt: skip
    devices = [{"rank": rank, "hostname": f"n{rank // 4 + 1}"} for rank in range(RANKS)]
    found = {
        "version": 3, "start_time": "2026-07-09 12:00:00", "args": ["/opt/all_reduce_perf", "-J"],
        "env": ["SECRET=1"], "nccl_version": 22907, "config": {"ngpus": 1, "devices": devices},
        "results": rows, "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 215.8, "okay": "unchecked"}, "errors": [],
    }  # fmt: skip
    return found | changes


def json_text(**changes: Any) -> str:
    """The file that `-J` writes: one line."""
    return json.dumps(json_output(**changes))
