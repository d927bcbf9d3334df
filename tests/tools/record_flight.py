# SPDX-License-Identifier: Apache-2.0
"""Record flight-recorder dumps of a real PyTorch: python -m tests.tools.record_flight PYTHON.

PYTHON is that of an environment with PyTorch 2.13 or later, which may be the one for CPUs. It runs
`flight_training.py` with four ranks for each case, and writes what they dump into
`tests/support/recorded_flight_data`. The paths of PYTHON and of the program end up in the dumps:
call it as /opt/torch/bin/python, and keep WORK as it is.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
DATA = _HERE.parent / "support" / "recorded_flight_data"
WORK = Path("/home/amy")
RANKS = 4
CASES = (
    "healthy", "absent", "given_up", "mismatched", "sizes", "died", "wrapped", "deadlock", "stage",
)  # fmt: skip
_PORT = 29512


def record(python: str, program: Path, case: str) -> None:
    """Run one case, and keep its pickles, and the JSON of the first one that goes wrong."""
    out = DATA / case
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    base = {
        "PATH": os.environ["PATH"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_PORT),
        "WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        "TORCH_FR_BUFFER_SIZE": "8" if case == "wrapped" else "2000",
    }  # fmt: skip
    ranks = [
        subprocess.Popen([python, program.name, case, str(out)], cwd=program.parent,
                         env={**base, "RANK": str(rank)})
        for rank in range(RANKS)
    ]  # fmt: skip
    for one in ranks:
        one.wait(timeout=120)
    if case != "absent":
        for path in out.glob("*.json"):
            path.unlink()


def main() -> None:
    """Record all cases, or those that are named."""
    python, *cases = sys.argv[1:]
    WORK.mkdir(exist_ok=True)
    program = WORK / "train.py"
    shutil.copy(_HERE / "flight_training.py", program)
    try:
        for case in cases or CASES:
            record(python, program, case)
    finally:
        program.unlink()


if __name__ == "__main__":
    main()
