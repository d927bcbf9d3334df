"""Setting up on a machine that lacks something says what, in one line."""

import os
import subprocess
import tempfile
from pathlib import Path

from tests.support.repository import REPO

SCRIPT = REPO / "packaging" / "dev-packages.sh"


def run(status: str) -> subprocess.CompletedProcess[str]:
    """The script as an ordinary user, on a Debian that says this of every package."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own are closed to others
        stub = Path(folder) / "dpkg-query"
        stub.write_text(f"#!/bin/sh\nprintf '%s' '{status}'\n")
        stub.chmod(0o755)
        stub.parent.chmod(0o755)
        return subprocess.run(
            ["bash", "-s"],
            input=SCRIPT.read_text(),
            capture_output=True,
            text=True,
            env={"PATH": f"{folder}:{os.environ['PATH']}"},
            user=65534 if os.geteuid() == 0 else None,
            cwd="/",
            check=False,
            timeout=20,
        )


def test_without_root_the_missing_packages_are_named_in_one_line() -> None:
    done = run("")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "as root on Debian 12: apt-get install" in done.stderr
    assert "slurm-wlm" in done.stderr
    assert not done.stdout


def test_with_all_packages_there_is_nothing_to_say() -> None:
    done = run("installed")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
