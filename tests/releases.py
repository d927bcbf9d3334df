"""Run what is marked as a case on every other release of Slurm: python -m tests.releases.

Words behind it go to pytest. A release that no mirror gives is said loudly and left out.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.cluster import ClusterError, tree

REPO = Path(__file__).resolve().parents[1]


def main() -> int:
    """Exit status 1 when a case failed on one of them."""
    failed = []
    for suite in tree.SUITES:
        try:
            made = tree.make(suite)
        except ClusterError as err:
            print(f"NOT RUN on another release: {err}", file=sys.stderr)
            continue
        print(f"== Slurm {made.slurm} ({suite})", flush=True)
        argv = [sys.executable, "-m", "pytest", "-q", "-m", "case", *sys.argv[1:]]
        env = os.environ | {"NCCL_INSPECTOR_SLURM_TREE": suite}
        if subprocess.run(argv, cwd=REPO, env=env, check=False).returncode != 0:
            failed.append(made.slurm)
    if failed:
        print(f"failed on Slurm {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
