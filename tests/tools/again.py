# SPDX-License-Identifier: Apache-2.0
"""Run pytest, and what failed once more: python -m tests.tools.again, with pytest's words.

Many tests have a cluster, or measure, on a machine that others use as well. What fails twice has
failed. What failed once only is said at the end, for it is to be mended all the same.

To rewrite 8,000 assertions takes each of pytest's workers as long as a hundred tests, so only what
is run once more has them rewritten. The first time a failure shows its local variables.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FAILED = 1  # pytest's own word for it; others mean that it could not run them
FIRST = ("--assert=plain", "--showlocals")
MOST = 10  # more than these are not chance


def failed_in(cache: Path) -> list[str]:
    """The tests that failed in the latest run with this cache."""
    try:
        found: dict[str, bool] = json.loads((cache / "v" / "cache" / "lastfailed").read_text())
    except FileNotFoundError:
        return []
    return sorted(found)


def run(words: Sequence[str]) -> tuple[int, list[str]]:
    """Run them; pytest's exit status, and which tests failed once and not twice."""
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-pytest-") as name:
        argv = [sys.executable, "-m", "pytest", "-o", f"cache_dir={name}", *words]
        status = subprocess.run([*argv, *FIRST], check=False).returncode
        first = failed_in(Path(name))
        if status != FAILED or not 0 < len(first) <= MOST:
            return status, []
        print(f"== once more: {', '.join(first)}", flush=True)
        argv += ["--last-failed", "--last-failed-no-failures=none"]
        status = subprocess.run(argv, check=False).returncode
        return status, sorted({*first} - {*failed_in(Path(name))})


def main() -> int:
    """Exit status as pytest's."""
    status, once = run(sys.argv[1:])
    for test in once:
        print(f"== FAILED ONCE of two runs: {test}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
