"""Reads JSON lines as NVIDIA's example exporter does: what it requires, and nothing of ours."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]

# Key and type in the vendor's order (format v4.0).
HEADER = {"id": str, "comm_name": str, "rank": int, "n_ranks": int, "nnodes": int}
METADATA = {
    "inspector_output_format_version": str,
    "git_rev": str,
    "rec_mechanism": str,
    "dump_timestamp_us": int,
    "hostname": str,
    "pid": int,
}
COLL_PERF = {
    "coll": str,
    "coll_sn": int,
    "coll_msg_size_bytes": int,
    "coll_exec_time_us": int,
    "coll_timing_source": str,
    "coll_algobw_gbs": float,
    "coll_busbw_gbs": float,
}
P2P_PERF = {
    "p2p": str,
    "p2p_sn": int,
    "p2p_peer": int,
    "p2p_msg_size_bytes": int,
    "p2p_exec_time_us": int,
    "p2p_timing_source": str,
    "p2p_algobw_gbs": float,
    "p2p_busbw_gbs": float,
}
ENDINGS = (".log", ".log.gz", ".jsonl", ".jsonl.gz")


def texts(directory: Path) -> Iterator[str]:
    """The text of each file that the exporter would read."""
    for path in sorted(directory.rglob("*")):
        if path.name.endswith(ENDINGS):
            data = path.read_bytes()
            yield (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def read(directory: Path) -> list[Line]:
    """Every line of every file; a line that is cut is an error."""
    found = []
    for text in texts(directory):
        assert not text or text.endswith("\n"), "a line is cut"
        found += [json.loads(line, object_pairs_hook=_unique) for line in text.splitlines()]
    return found


def _unique(pairs: list[tuple[str, Any]]) -> Line:
    assert len({key for key, _ in pairs}) == len(pairs), "a key is there twice"
    return dict(pairs)


def check(line: Line) -> None:
    """Raise AssertionError where the vendor's reader would not take the line."""
    perf = "coll_perf" if "coll_perf" in line else "p2p_perf"
    assert list(line) == ["header", "metadata", perf]
    wanted = COLL_PERF if perf == "coll_perf" else P2P_PERF
    for part, keys in (("header", HEADER), ("metadata", METADATA), (perf, wanted)):
        assert list(line[part])[: len(keys)] == list(keys), "the vendor's keys come first"
        for key, kind in keys.items():
            assert type(line[part][key]) is kind, f"{part}.{key}"
    assert line["metadata"]["inspector_output_format_version"] == "v4.0"
    assert line["metadata"]["rec_mechanism"] == "nccl_profiler_interface"
