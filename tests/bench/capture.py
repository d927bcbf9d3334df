# SPDX-License-Identifier: Apache-2.0
"""`analyze` beside a plain reader of JSON lines: json, and pandas' json_normalize and groupby.

Each reads in a process of its own. The plain one reads as many lines as it can in the memory that
analyze may take, a gigabyte for every 110,000. Its time for a line is no less where there are more.

`python -m tests.bench.capture OPERATIONS`: these two figures alone, as for the whole 10 million.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.figure import Figure, table
from tests.support.json_lines import START_US, ours, text

OPERATIONS = 2_000_000
PLAIN_OPERATIONS = 200_000
RANKS = 8
_MEMORY_MIB, _FASTER = 2048.0, 20.0
_STEP: tuple[
    tuple[str, str, str, int, int], ...
] = (  # what a training step calls, with its bytes and how many of them it has
    ("AllReduce", "RING", "SIMPLE", 26_214_400, 4),
    ("AllReduce", "TREE", "LL128", 1_310_720, 2),
    ("AllReduce", "TREE", "LL", 8, 1),
    ("ReduceScatter", "RING", "SIMPLE", 8_388_608, 3),
    ("AllGather", "RING", "LL128", 524_288, 2),
)
_BUS = {"AllReduce": (1, 2 * (RANKS - 1) / RANKS), "ReduceScatter": (RANKS, RANKS - 1),
        "AllGather": (RANKS, RANKS - 1)}  # fmt: skip
_DUMP_US = 10_000_000
_HOLES = {
    "dump": 811_000_001, "sn": 811_000_002, "us": 811_000_003, "ns": 811_000_004,
    "start": 811_000_005, "end": 811_000_006, "gpu": 811_000_007, "alg": 811_000_008,
    "bus": 811_000_009,
}  # fmt: skip


def _template(rank: int, func: str, algo: str, proto: str, size: int) -> str:
    """Return a line of our plugin's with places for what differs between operations."""
    line = ours(_HOLES["sn"], rank, 1000, START_US)
    line["header"]["n_ranks"] = RANKS
    line["metadata"]["dump_timestamp_us"] = _HOLES["dump"]
    line["coll_perf"] |= {
        "coll": func, "coll_algo": algo, "coll_proto": proto, "coll_msg_size_bytes": size,
        "coll_exec_time_us": _HOLES["us"], "coll_exec_time_ns": _HOLES["ns"],
        "coll_algobw_gbs": _HOLES["alg"], "coll_busbw_gbs": _HOLES["bus"],
        "coll_start_us": _HOLES["start"], "coll_end_us": _HOLES["end"],
        "coll_gpu_start_ns": _HOLES["gpu"],
    }  # fmt: skip
    found = text([line]).decode()
    for name, hole in _HOLES.items():
        found = found.replace(
            str(hole), f"%({name}).6f" if name in ("alg", "bus") else f"%({name})d"
        )
    return found


def write_lines(directory: Path, operations: int) -> None:
    """Write so many lines, of eight ranks in a file each, in the forms that the plugin gives them.

    Times vary by a third and now and then tenfold, bandwidths are of bytes and time, a dump's
    lines have its time, and functions are counted each by itself.
    """
    directory.mkdir(exist_ok=True)
    calls = [call for call in _STEP for _ in range(call[-1])]
    for rank in range(RANKS):
        rng = random.Random(rank)  # noqa: S311
        templates = [_template(rank, *call[:-1]) for call in calls]
        numbers = dict.fromkeys(_BUS, 0)
        end_ns = START_US * 1000
        with (directory / f"node{rank // 2}-pid{1000 + rank}.log").open("w") as file:
            for at in range(operations // RANKS):
                func, _, _, size, _ = calls[at % len(calls)]
                ns = int((9_000 + size / 50) * (1 + rng.random() / 3))
                ns *= 10 if rng.random() < 0.01 else 1
                end_ns += ns + rng.randrange(100_000, 900_000)
                algorithm, bus = _BUS[func]
                end_us = end_ns // 1000
                file.write(
                    templates[at % len(calls)]
                    % {
                        "dump": (end_us // _DUMP_US + 1) * _DUMP_US + 137, "sn": numbers[func],
                        "us": round(ns / 1000), "ns": ns, "start": end_us - ns // 1000,
                        "end": end_us, "gpu": end_ns - ns, "alg": size / ns * algorithm,
                        "bus": size / ns * bus,
                    }
                )  # fmt: skip
                numbers[func] += 1


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
    from nccl_inspector.capture.analyze import analyze_directory

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
    # Starting is no reading.
    if reader == "plain":
        import pandas  # noqa: F401
    else:
        import nccl_inspector.capture.exact_card
        import nccl_inspector.capture.processes  # noqa: F401
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
