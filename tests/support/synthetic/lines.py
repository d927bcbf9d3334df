# SPDX-License-Identifier: Apache-2.0
"""Time lines of made-up jobs, as node summaries carry them: nothing that a box does not have.

Noise as it was measured on clusters: each window's time depends a little on the one before
(AR(1), 0.3), and one in a hundred is much longer alone. Same seed, same job.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nccl_inspector.analysis.histogram import bucket_of, lower_ns
from nccl_inspector.model.process import FINALIZED, FUNCS, GPU_TIMED, Facts, Line, Process, Window
from nccl_inspector.summary.codec import Head, decode, encode, encode_process
from tests.support.boxes import NOW_S

WINDOW_S = 10
START_S = NOW_S - NOW_S % 1280
MEMORY, SPIKES, SPIKE = 0.3, 0.01, 0.3  # of the noise
JITTER_NS = 150_000.0
SHORTEST = 0.95  # of a window's median: its shortest time

Floats = NDArray[np.float64]

FACTS = Facts(
    name="0_100", state=FINALIZED, pid=100, step=0, procid=0, localid=0, array_job_id=None,
    array_task_id=None, api_version=5, nccl_version=23007, plugin_version="0.1.0", node="n1",
    beat_ns=START_S * 10**9, timing=GPU_TIMED, silent="", silent_ns=0, sampling=1, sampled_ns=0,
    series_dropped=0, json_lines=0, net_ns=0, self_ns=0, hot_ns=0, comms_created=1,
    comms_destroyed=0,
)  # fmt: skip
HEAD = Head(
    job_id=42, uid=1, user="amy", account="phys", partition="gpu", cluster="c1", node="n1",
    nodelist="n1", num_nodes=1, restart=0, start=START_S, job_start=START_S, end=START_S + 10**6,
    het_job_id="", problems=(),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Made:
    """One kind of operation over its ranks. `times_ns`: T of each window, NaN without operations.

    `waiting_ns`: how long all ranks but the last wait, in each window.
    """

    times_ns: Floats
    ranks: int = 4
    nranks: int = 0  # of the communicator; 0: as many
    comm_id: int = 7
    func: str = "AllReduce"
    size_bytes: int = 128 << 20
    ops: Floats | int = 50
    waiting_ns: Floats | float = 0.0
    members: Sequence[int] | None = None  # processes; None: counted from 0


def noise(rng: np.random.Generator, windows: int, sigma: float) -> Floats:
    """Return the logarithm of what times are longer by, without any dip."""
    pushes = rng.normal(0.0, sigma * (1 - MEMORY**2) ** 0.5, windows)
    found = np.empty(windows)
    found[0] = rng.normal(0.0, sigma)
    for at in range(1, windows):
        found[at] = MEMORY * found[at - 1] + pushes[at]
    found[rng.random(windows) < SPIKES] += SPIKE
    return found


def slower(times_ns: Floats, first: int, end: int, depth: float) -> Floats:
    """Return times with a bandwidth lower by `depth`, as 0.1, in windows `first` to `end`."""
    found = times_ns.copy()
    found[first:end] /= 1 - depth
    return found


def _in_bucket(time_ns: float) -> int:
    """Return the middle of the time's bucket, which is all that the plugin keeps."""
    bucket = bucket_of(int(time_ns))
    return (lower_ns(bucket) + lower_ns(bucket + 1)) // 2


def _line(made: Made, rank: int, medians_ns: Floats) -> Line:
    ops = np.broadcast_to(np.asarray(made.ops), medians_ns.shape)
    windows, index = [], 1
    for place, (median_ns, count) in enumerate(zip(medians_ns, ops.astype(int), strict=True)):
        if np.isnan(median_ns) or not count:
            continue
        middle = _in_bucket(median_ns)
        windows.append(
            Window(
                start_s=START_S + place * WINDOW_S,
                late_ms=300,
                ops=int(count),
                bytes=int(count) * made.size_bytes,
                busy_ns=int(count * median_ns),
                min_ns=_in_bucket(SHORTEST * median_ns),
                median_ns=middle,
                first_index=index,
                last_index=index + int(count) - 1,
            )
        )
        index += int(count)
    func, size_class = FUNCS.index(made.func), made.size_bytes.bit_length() - 1
    return Line(made.comm_id, rank, func, size_class, WINDOW_S, START_S, tuple(windows))


def lines_of(rng: np.random.Generator, made: Made) -> list[tuple[int, Line]]:
    """Return the line of each rank with its process; the last rank to come is the last one."""
    members = made.members or range(made.ranks)
    found = []
    for rank, member in zip(range(made.ranks), members, strict=True):
        waits = rank < made.ranks - 1
        extra = made.waiting_ns + rng.uniform(0, JITTER_NS, len(made.times_ns)) if waits else 0.0
        found.append((member, _line(made, rank, made.times_ns + extra)))
    return found


def carried(lines: Sequence[tuple[int, Line]]) -> list[tuple[int, Line]]:
    """Return the lines as a report gets them: packed into node summaries, and read again."""
    by_member: dict[int, list[Line]] = {}
    for member, line in lines:
        by_member.setdefault(member, []).append(line)
    processes = [
        Process(FACTS, (0,) * 9, (), (), (), (), tuple(some), (), (), ())
        for some in by_member.values()
    ]
    blocks = [encode_process(process) for process in processes]
    read = decode(encode(HEAD, blocks)).processes
    return [
        (member, line)
        for member, process in zip(by_member, read, strict=True)
        for line in process.lines
    ]
