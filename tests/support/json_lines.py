# SPDX-License-Identifier: Apache-2.0
"""JSON lines as our plugin and NVIDIA's Inspector write them, for readers of captures."""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
START_US = 1_795_216_800_000_000


def header(rank: int = 0, nranks: int = 4, comm: str = "0xabc000000000") -> Json:
    """The header of a line."""
    return {"id": comm, "comm_name": "dp", "rank": rank, "n_ranks": nranks, "nnodes": 2}


def metadata(rank: int = 0, form: str = "v4.0", dump_us: int = START_US) -> Json:
    """NVIDIA's metadata: two ranks on each node."""
    return {
        "inspector_output_format_version": form,
        "git_rev": "unknown",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": dump_us,
        "hostname": f"node{rank // 2}",
        "pid": 1000 + rank,
    }


def coll(number: int = 0, time_us: int = 20, func: str = "AllReduce", **more: Any) -> Json:
    """What is said of a collective."""
    return {
        "coll": func,
        "coll_sn": number,
        "coll_msg_size_bytes": 1048576,
        "coll_exec_time_us": time_us,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 41.94304,
        "coll_busbw_gbs": 62.91456,
        **more,
    }


def p2p(number: int = 0, peer: int = 1, time_us: int = 30, func: str = "Send") -> Json:
    """What is said of a Send or Recv."""
    return {
        "p2p": func,
        "p2p_sn": number,
        "p2p_peer": peer,
        "p2p_msg_size_bytes": 65536,
        "p2p_exec_time_us": time_us,
        "p2p_timing_source": "kernel_gpu",
        "p2p_algobw_gbs": 2.184533,
        "p2p_busbw_gbs": 2.184533,
    }


def traces(kind: str, start_us: int = START_US) -> Json:
    """What a verbose line says besides."""

    def events(unit: str, first: int) -> Json:
        channels = [
            {"channel_id": at, f"kernel_start_{unit}": first + 2 + at,
             f"kernel_stop_{unit}": first + 6 + 2 * at,
             f"kernel_record_{unit}": first + 5 + 2 * at}
            for at in range(2)
        ]  # fmt: skip
        return {
            f"{kind}_start_{unit}": first,
            f"{kind}_stop_{unit}": first + 1,
            "kernel_events": channels,
        }

    return {"event_trace_sn": events("sn", 1), "event_trace_ts": events("ts", start_us)}


def ours(number: int, rank: int, time_ns: int, end_us: int, **said: Any) -> Json:
    """A whole line of our plugin's; `said`: other words of its metadata."""
    more = {
        "node": f"n{rank // 2}", "cluster": "c", "slurm_job_id": 810, "slurm_step_id": 0,
        "slurm_procid": rank, "gpu_uuid": f"GPU-{rank}", "lines_dropped": 0,
        "operations_unmeasured": 0, **said,
    }  # fmt: skip
    own = coll(
        number, max(1, round(time_ns / 1000)), coll_algo="RING", coll_proto="SIMPLE",
        coll_channels=16, coll_exec_time_ns=time_ns, coll_start_us=end_us - time_ns // 1000,
        coll_end_us=end_us, coll_gpu_start_ns=end_us * 1000 - time_ns,
    )  # fmt: skip
    return {"header": header(rank), "metadata": metadata(rank) | more, "coll_perf": own}


def whole(rank: int, form: str = "v4.0", **part: Json) -> Json:
    """A line that has a header of its own."""
    return {"header": header(rank), "metadata": metadata(rank, form), **part}


def marker(rank: int, colls: int, p2ps: int = 0, form: str = "v4.3", dropped: int = 0) -> Json:
    """What begins a dump of a communicator from v4.1 on."""
    stats = {
        "coll_records": colls, "coll_dropped_total": dropped, "coll_dropped_since_last_dump": 0,
        "p2p_records": p2ps, "p2p_dropped_total": 0, "p2p_dropped_since_last_dump": 0,
    }  # fmt: skip
    return whole(rank, form, dump_stats=stats)


def text(lines: Iterable[Json]) -> bytes:
    """The lines as they are written."""
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def write(directory: Path, name: str, lines: Iterable[Json]) -> Path:
    """Write a file of lines, compressed where its name says so."""
    path = directory / name
    data = text(lines)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def write_end(directory: Path, name: str, end_us: int, unfinished: int = 0) -> None:
    """Write what a process leaves beside its newest file when it ends."""
    said = {"end_us": end_us, "operations_unfinished": unfinished, "lines_dropped": 0}
    (directory / f"{name}.end").write_text(json.dumps(said) + "\n")


def write_job(directory: Path, times_us: Sequence[Sequence[int]], gap_us: int = 1000) -> None:
    """Write our lines of ranks whose operations took these times; each rank has a file."""
    for rank, own in enumerate(times_us):
        ends_us = [START_US + (at + 1) * gap_us for at in range(len(own))]
        name = f"node{rank // 2}-pid{1000 + rank}.log"
        lines = [ours(at, rank, us * 1000, ends_us[at]) for at, us in enumerate(own)]
        write(directory, name, lines)
        write_end(directory, name, ends_us[-1])
