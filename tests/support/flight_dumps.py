"""Dumps of PyTorch's flight recorder: recorded ones, and ones of NCCL's shape that are made up."""

import os
import pickle
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded_flight_data")
START_NS = 1_795_000_000_000_000_000
LATER_S = 7  # from the last call to the dump
TRAIN = "/home/amy/train.py"


def entry(
    record_id: int,
    seq: int,
    op: str = "all_reduce",
    *,
    state: str = "completed",
    group: str = "0",
    desc: str = "default_pg",
    sizes: Sequence[int] = (1024,),
    line: int = 10,
    **fields: Any,
) -> dict[str, Any]:
    """Return one operation as NCCL's backend records it."""
    created_ns = START_NS + record_id * 1_000_000
    is_p2p = op.startswith(("send", "recv"))
    found = {
        "record_id": record_id, "pg_id": 0, "process_group": (group, desc),
        "collective_seq_id": 0 if is_p2p else seq, "p2p_seq_id": seq if is_p2p else 0,
        "op_id": record_id + 1, "profiling_name": f"nccl:{op}", "is_p2p": is_p2p,
        "input_sizes": [[*sizes]], "input_dtypes": ["Float"],
        "output_sizes": [[*sizes]], "output_dtypes": ["Float"],
        "state": state, "retired": state == "completed", "timeout_ms": 600000,
        "time_created_ns": created_ns,
        "time_discovered_started_ns": None if state == "scheduled" else created_ns + 1,
        "time_discovered_completed_ns": created_ns + 2 if state == "completed" else None,
        "frames": [
            {"name": "all_reduce", "filename": "/opt/torch/distributed.py", "line": 3},
            {"name": "step", "filename": TRAIN, "line": line},
        ],
    }  # fmt: skip
    return found | fields


def dump(
    entries: Iterable[Mapping[str, Any]], groups: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
    """Return a rank's dump; `groups` has the members of its groups by name."""
    rows = [dict(one) for one in entries]
    descs = {one["process_group"][0]: one["process_group"][1] for one in rows}
    config = {
        name: {"name": name, "desc": descs.get(name, "undefined"), "ranks": str([*ranks])}
        for name, ranks in (groups or {}).items()
    }
    return {"version": "2.10", "comm_lib_version": "2.30.7", "pg_config": config,
            "pg_status": {}, "entries": rows}  # fmt: skip


def _newest_ns(value: Mapping[str, Any]) -> int:
    return max((one["time_created_ns"] for one in value["entries"]), default=START_NS)


def write(folder: Path, ranks: Mapping[int, Mapping[str, Any]], later_s: float = LATER_S) -> Path:
    """Write a dump for each rank, all of them `later_s` after the last call of any."""
    written_ns = max(map(_newest_ns, ranks.values())) + int(later_s * 1e9)
    for rank, value in ranks.items():
        path = folder / f"comm_lib_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(value, protocol=2))
        os.utime(path, ns=(written_ns, written_ns))
    return folder


def copy_case(case: str, folder: Path, suffix: str = "") -> Path:
    """Copy a recorded case, with the times that the files had; `suffix` .json: that form."""
    paths = [one for one in (RECORDED / case).iterdir() if one.suffix == suffix]
    newest_ns = max(
        _newest_ns(pickle.loads(one.with_suffix("").read_bytes()))  # noqa: S301 - our own
        for one in paths
    )
    written_ns = newest_ns + int(LATER_S * 1e9)
    for one in paths:
        target = folder / one.name
        shutil.copy(one, target)
        os.utime(target, ns=(written_ns, written_ns))
    return folder
