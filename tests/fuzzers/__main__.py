"""Run fuzzers: python -m tests.fuzzers --seconds N [--seed S] [names]."""

import argparse
import math
import sys
from pathlib import Path

from tests.fuzzers.campaign import Campaign, Outcome
from tests.fuzzers.catalog import TARGETS, find
from tests.fuzzers.worker import run_all

FOLDER = Path(__file__).parents[2] / "build" / "fuzz" / "python"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--cpu-seconds", type=float, help="of each target, in place of --seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", type=Path, help="one saved input of the target that is named")
    known = [one.name for one in TARGETS]
    parser.add_argument("names", nargs="*", metavar="name", help=f"of targets: {', '.join(known)}")
    return parser


def main() -> int:
    """Return 1 where an input fails."""
    words = _parser().parse_args()
    targets = find(words.names)
    if words.replay:
        result = run_all(targets[0], [words.replay.read_bytes()])[0]
        print(f"{result.kind}, {result.cpu_s:.2f} s CPU, {result.grown_bytes >> 20} MiB")
        print(result.words)
        return int(result.kind != "ok")
    outcomes: list[Outcome] = []
    for target in targets:
        seconds = words.seconds / len(targets) if words.cpu_seconds is None else math.inf
        campaign = Campaign(target, words.seed, FOLDER)
        outcomes.append(campaign.run(seconds, cpu_s=words.cpu_seconds or math.inf))
        print(outcomes[-1].row, flush=True)
    failures = [failure for one in outcomes for failure in one.failures.values()]
    for failure in failures:
        print(f"{failure.line}: {failure.saved}")
    inputs = sum(one.inputs for one in outcomes)
    print(f"{inputs:,} inputs, {len(failures)} findings, seed {words.seed}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
