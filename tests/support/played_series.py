# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus has of a simulated job that was played through the real plugin.

The counters are those of the boxes at the job's end. They grow steadily, as they do on average.
"""

from collections.abc import Iterator
from pathlib import Path

from nccl_inspector.model.process import FUNCS, P2P
from nccl_inspector.summary.codec import NodeSummary, decode
from tests.simulator.play import JOB_ID
from tests.support.promtool import Labels, Series


def played_series(
    reports: Path, own: Labels, wall_s: float, looks: int, every_s: int = 30
) -> Iterator[Series]:
    """Yield counters of operations and of busy time, of so many looks at a job of so many s."""
    for path in sorted((reports / str(JOB_ID)).glob("*.nodesummary")):
        yield from _of_node(decode(path.read_bytes()), own, every_s / wall_s, looks)


def _of_node(summary: NodeSummary, own: Labels, part: float, looks: int) -> Iterator[Series]:
    for process in summary.processes:
        comms = {one.index: one for one in process.comms}
        for key in process.keys:
            comm, func = comms[key.comm], FUNCS[key.func]
            labels = own | {
                "node": summary.head.node, "gpu": process.gpus[comm.gpu or 0].label,
                "rank": str(comm.rank), "comm": f"0x{comm.id:x}", "comm_name": comm.name,
                "n_nodes": str(comm.nnodes), "nranks": str(comm.nranks),
                "message_size": str(key.size_class),
            }  # fmt: skip
            kind = {"p2p_operation": func}
            if func not in P2P:
                kind = {"collective": func, "algo_proto": key.algo_proto}
            prefix = "nccl_p2p" if func in P2P else "nccl_collective"
            for name, value in (("operations", key.ops), ("busy_seconds", key.busy_ns / 1e9)):
                values = f"0+{value * part:.9g}x{looks}"
                yield Series(f"{prefix}_{name}_total", labels | kind, values)
