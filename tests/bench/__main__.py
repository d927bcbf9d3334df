# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench [--json] [--check] [--rounds N]`: measure, print one table."""

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from tests.bench import (
    agent,
    capture,
    card,
    collection,
    figure,
    hooks,
    logs,
    options,
    profiler,
    service,
    spank,
    store,
)
from tests.bench.figure import Figure
from tests.bench.sample import Sample, as_json, table


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": os.getloadavg()[0],
    }


def measure(rounds: int) -> tuple[list[Sample], list[Figure]]:
    """Measure everything in memory, as on a node; the profiler plugin has its own table.

    Raises:
        ChildProcessError, subprocess.CalledProcessError: a part failed.
    """
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as name:
        folder = Path(name)
        parts = (
            "hooks",
            "spank",
            "agent",
            "service",
            "scrape",
            "profiler",
            "options",
            "capture",
            "logs",
            "store",
            "collection",
            "card",
        )
        for part in parts:
            (folder / part).mkdir()
        samples = [
            *hooks.measure(folder / "hooks", rounds),
            *spank.measure(folder / "spank", rounds),
            *agent.measure(folder / "agent", max(1, rounds // 10)),
            *service.measure_scrape(folder / "scrape", max(2, rounds // 5)),
        ]
        figures = service.measure(folder / "service", max(1, rounds // 30))
        figures += capture.measure(folder / "capture", capture.OPERATIONS if rounds >= 30 else 8000)
        figures += logs.measure(folder / "logs", logs.MIB if rounds >= 30 else 2)
        figures += store.measure(folder / "store", store.JOBS if rounds >= 30 else 2000)
        figures += collection.measure(folder / "collection")
        figures += card.measure(folder / "card", card.NODES if rounds >= 30 else 8)
        figures += profiler.measure(folder / "profiler", rounds)
        return samples, figures + options.measure(folder / "options", rounds)


def main() -> int:
    """Return 0, with --check 1 when a limit is exceeded; 2 without root."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="fail when a limit is exceeded")
    parser.add_argument("--rounds", type=int, default=300, help="how often each thing is done")
    args = parser.parse_args()
    if os.geteuid():
        print("the hooks are for root", file=sys.stderr)
        return 2
    where = machine()
    samples, figures = measure(args.rounds)
    if args.json:
        rows = [as_json(one) for one in samples]
        ours = [figure.as_json(one) for one in figures]
        print(json.dumps({"machine": where, "rows": rows, "profiler": ours}, indent=1))
    else:
        print(", ".join(f"{key} {value}" for key, value in where.items()))
        print(table(samples), figure.table(figures), sep="\n\n")
    verdicts = [one.verdict for one in samples] + [one.verdict for one in figures]
    return int(args.check and "OVER" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
