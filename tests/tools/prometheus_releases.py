# SPDX-License-Identifier: Apache-2.0
"""Run the tests of the rules with other releases: python -m tests.tools.prometheus_releases.

The Prometheus and VictoriaMetrics of other Debian suites are unpacked below build/, and come first
in PATH. Other words go to pytest; `--suites forky` takes one suite. Nothing is installed.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.sandbox.tree import SUITES, host_suite, pick_mirror
from tests.support.repository import BUILD, REPO

PACKAGES = ("prometheus", "promtool", "victoria-metrics")
TESTS = "tests/unit/monitoring"


def _apt(folder: Path, *words: str) -> None:
    """apt-get with a state of its own, which knows one suite."""
    state = {"Dir::State": folder / "state", "Dir::Cache": folder / "cache"}
    lists = {"Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "/dev/null"}
    options = [f"-o{name}={value}" for name, value in (state | lists).items()]
    subprocess.run(["apt-get", "-qq", *options, *words], cwd=folder / "debs", check=True)


def unpacked(suite: str) -> Path:
    """The directory of a suite's programs; they are fetched once."""
    folder = BUILD / "prometheus" / suite
    programs = folder / "root" / "usr" / "bin"
    if not programs.is_dir():
        for part in ("debs", "state/lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        targets = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)"],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        mirror = pick_mirror(targets.stdout, host_suite())
        (folder / "sources.list").write_text(f"deb {mirror} {suite} main\n")
        _apt(folder, "update")
        _apt(folder, "download", *PACKAGES)
        for package in sorted((folder / "debs").glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    return programs


def run(suite: str, words: Sequence[str]) -> bool:
    """Run the tests with a suite's programs; False when one failed."""
    env = os.environ | {"PATH": f"{unpacked(suite)}:{os.environ['PATH']}"}
    said = subprocess.run(["promtool", "--version"], env=env, capture_output=True, check=True)
    print(f"== {suite}: {(said.stdout + said.stderr).decode().splitlines()[0]}", flush=True)
    argv = [sys.executable, "-m", "pytest", "-q", TESTS, *words]
    return subprocess.run(argv, cwd=REPO, env=env, check=False).returncode == 0


def main() -> int:
    """Exit status 1 when a test failed with one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", nargs="+", default=SUITES, choices=SUITES)
    known, words = parser.parse_known_args()
    done = [run(suite, words) for suite in known.suites]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
