"""Soak: python -m tests.soak --seconds N --seed S; $SOAK_SECONDS is the default, else an hour."""

import argparse
import os
import secrets
import sys
import tempfile
from pathlib import Path

from tests.sandbox.host import missing
from tests.soak.run import Soak
from tests.support.sandbox.controller_site import controlled


def main() -> int:
    """Return 1 where there is any difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    seconds = float(os.environ.get("SOAK_SECONDS") or 3600)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    words = parser.parse_args()
    if reason := missing(monitoring=False, accounting=False):
        print(reason, file=sys.stderr)
        return 2
    print(f"seed {words.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-soak-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        # An agent that was killed, on a machine at work, may tell of an ended job after a while.
        lines = "MinJobAge=600", "MaxJobCount=20000"
        with controlled(Path(name), *lines, wait_s=60) as service:
            service.start()
            soak = Soak(service, words.seed)
            try:
                soak.run(words.seconds)
            finally:
                service.stop()
            print("\n".join(soak.table()))
            for one in soak.differences:
                print(f"DIFFERENCE {ascii(one)[1:-1]}")
    return int(bool(soak.differences))


if __name__ == "__main__":
    sys.exit(main())
