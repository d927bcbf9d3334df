# SPDX-License-Identifier: Apache-2.0
"""`analyze` beside a plain reader of JSON lines: json, and pandas' json_normalize and groupby.

Each reads in a process of its own. The plain one reads a part of the lines, because all of them
take it minutes and a gigabyte for every 200,000; its time for an operation only grows with them.

`python -m tests.bench.capture OPERATIONS`: these two figures alone, as for the whole 10 million.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.figure import Figure, table
from tests.captures import START_US, ours, text

OPERATIONS = 400_000
PLAIN_OPERATIONS = 40_000
RANKS = 8
_FUNCS = "AllReduce", "ReduceScatter", "AllGather"
_MEMORY_MIB, _FASTER = 2048.0, 20.0
_HOLES = {"rank": 7, "pid": 1007, "sn": 991_001, "us": 992_002, "ns": 993_003, "end": 994_004}


def _template(rank: int, func: str) -> str:
    """Return a line of our plugin's with places for what differs between operations."""
    line = ours(_HOLES["sn"], rank, 1000, START_US)
    line["header"]["n_ranks"] = RANKS
    line["metadata"]["dump_timestamp_us"] = _HOLES["end"]
    line["coll_perf"] |= {
        "coll": func, "coll_exec_time_us": _HOLES["us"], "coll_exec_time_ns": _HOLES["ns"],
        "coll_start_us": _HOLES["end"], "coll_end_us": _HOLES["end"],
    }  # fmt: skip
    found = text([line]).decode()
    for name in ("sn", "us", "ns", "end"):
        found = found.replace(str(_HOLES[name]), f"%({name})d")
    return found


def write_lines(directory: Path, operations: int) -> None:
    """Write so many lines, of eight ranks in a file each."""
    directory.mkdir(exist_ok=True)
    for rank in range(RANKS):
        templates = [_template(rank, func) for func in _FUNCS]
        with (directory / f"node{rank // 2}-pid{1000 + rank}.log").open("w") as file:
            for at in range(operations // RANKS):
                us = 100 + (at * 31 + rank * 7) % 40
                file.write(
                    templates[at % 3]
                    % {"sn": at // 3, "us": us, "ns": us * 1000 + 17, "end": START_US + at * 1000}
                )


def _plain(directory: Path) -> float:
    """Return the median over operations of the least of the ranks' times, us, as pandas tells."""
    import pandas as pd

    rows = [json.loads(line) for path in sorted(directory.iterdir()) for line in path.open()]
    ops = pd.json_normalize(rows)
    own = ops.groupby(["header.id", "coll_perf.coll", "coll_perf.coll_sn"])[
        "coll_perf.coll_exec_time_ns"
    ].agg(["min", "sum", "count"])
    return float(own["min"].median() / 1000)


def _ours(directory: Path) -> float:
    from nccl_inspector.capture.command import analyze_directory

    card = analyze_directory(directory, None)
    return card.operations[0].time_ns / 1000


def _run(reader: str, directory: Path) -> dict[str, Any]:
    """Return what one reader took, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.capture", reader, str(directory)],
        capture_output=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(folder: Path, operations: int) -> list[Figure]:
    """Measure both readers.

    Raises:
        subprocess.CalledProcessError: one failed.
    """
    few = min(operations, PLAIN_OPERATIONS)
    write_lines(folder / "many", operations)
    write_lines(folder / "few", few)
    plain, mine = _run("plain", folder / "few"), _run("ours", folder / "many")
    plain_us = plain["seconds"] / few * 1e6
    ours_us = mine["seconds"] / operations * 1e6
    cpu = f"CPU {mine['cpu'] / operations * 1e6:.1f} us, plain {plain['cpu'] / few * 1e6:.1f} us"
    return [
        Figure(f"analyze, {operations} lines, {cpu}: us a line", "us", ours_us, ours=ours_us,
               nothing=plain_us),
        Figure("analyze: times as fast as json and pandas", "x", plain_us / ours_us, _FASTER, True),
        Figure("analyze: memory", "MiB", mine["rss_mib"], _MEMORY_MIB),
    ]  # fmt: skip


def _measure_one(reader: str, directory: Path) -> None:
    import resource
    import time

    read = {"plain": _plain, "ours": _ours}[reader]
    if reader == "plain":
        import pandas  # noqa: F401 - its start is no reading
    wall, cpu = time.perf_counter(), time.process_time()
    found = read(directory)
    print(json.dumps({
        "seconds": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "time_us": found,
    }))  # fmt: skip


def main(words: list[str]) -> None:
    """Run one reader, or measure both."""
    if len(words) == 2:
        _measure_one(words[0], Path(words[1]))
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        print(table(measure(Path(name), int(words[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
