"""Run what is marked as a case on every other release of Slurm: python -m tests.tools.releases.

With `--turn K/N` a part of the cases on one of them: another part or another release for another K.
Other words go to pytest. The releases run side by side: most of a case is waiting for Slurm. A
release that no mirror gives is said loudly and left out. A Slurm of the tester's in
SLURM_PREFIX is tested as another release (tests/sandbox/given.py).
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.sandbox import ClusterError, given
from tests.support.repository import REPO
from tests.tools.turns import Turn


def run(suite: str, words: Sequence[str]) -> bool:
    """Run the cases on one release and print what pytest says; False when one failed."""
    try:
        made = given.release(suite)
    except ClusterError as err:
        print(f"NOT RUN on another release: {err}", file=sys.stderr, flush=True)
        return suite != given.SUITE
    argv = [sys.executable, "-m", "tests.tools.again", "-q", "-m", "case", *words]
    env = os.environ | {"NCCL_INSPECTOR_SLURM_TREE": suite}
    done = subprocess.run(
        argv, cwd=REPO, env=env, check=False, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    print(f"== Slurm {made.slurm} ({suite})\n{done.stdout}", flush=True)
    return done.returncode == 0


def main() -> int:
    """Exit status 1 when a case failed on one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turn", type=Turn.of)
    known, words = parser.parse_known_args()
    suites = list(given.releases())
    if known.turn:
        part = known.turn.part_for(suites)
        words += ["--case-turn", f"{part.part}/{part.parts}"]
        suites = [known.turn.choose(suites)]
    with ThreadPoolExecutor(len(suites)) as pool:
        return 0 if all(list(pool.map(partial(run, words=words), suites))) else 1


if __name__ == "__main__":
    sys.exit(main())
