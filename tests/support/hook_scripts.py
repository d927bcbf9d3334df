# SPDX-License-Identifier: Apache-2.0
"""Prolog and epilog, run as slurmd runs them: as root, with nothing but slurmd's variables."""

import stat
import subprocess
from pathlib import Path

from tests.support.repository import REPO

PROLOG = REPO / "prolog" / "50-nccl-inspector.sh"
EPILOG = REPO / "epilog" / "50-nccl-inspector.sh"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
NOBODY = 65534
SHELLS = ("dash", "bash")  # what /bin/sh is on Debian and on RHEL

JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_UID": str(NOBODY),
    "SLURM_JOB_GID": str(NOBODY),
    "SLURM_JOB_USER": "nobody",
    "SLURM_JOB_ACCOUNT": "proj1",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_QOS": "high",
    "SLURMD_NODENAME": "n1",
    "SLURM_NODELIST": "n[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_CLUSTER_NAME": "sandbox",
    "SLURM_JOB_GPUS": "0,1",
    "SLURM_JOB_RESTART_COUNT": "0",
    "SLURM_JOB_WORK_DIR": "/home/nobody",
    "SPANK_NCCL_INSPECTOR": "prom",
}

# The hooks set PATH themselves: a stub is found only by a copy with this line changed.
_PATH = "PATH=/usr/sbin:"


def sh(folder: Path, shell: str) -> Path:
    """Return a path named `sh` that starts the shell as /bin/sh would."""
    link = folder / shell / "sh"
    if not link.exists():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(Path("/bin") / shell)
    return link


def with_stubs(folder: Path, hook: Path, **stubs: str) -> Path:
    """Copy a hook to where these shell scripts stand in for the programs that it calls."""
    for name, text in stubs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    text = hook.read_text(encoding="ascii")
    assert text.count(_PATH) == 1
    copy = folder / f"{hook.parent.name}.sh"
    copy.write_text(text.replace(_PATH, f"PATH={folder}:/usr/sbin:"), encoding="ascii")
    return copy


class Node:
    """A node's run directory, as the package sets it up, and its hooks under one shell."""

    def __init__(self, run_dir: Path, shell: Path) -> None:
        self.run_dir = run_dir
        self.shell = shell
        self.job = run_dir / "jobs" / "42"
        for name, mode in (("jobs", 0o711), ("ended", 0o700), ("prom", 0o755), ("control", 0o755)):
            (run_dir / name).mkdir(parents=True)
            (run_dir / name).chmod(mode)

    def run(self, hook: Path, **env: str | bytes) -> str:
        """Run a hook, which must end with 0, and return what it logged."""
        done = subprocess.run(
            [self.shell, hook],
            env={"NCCL_INSPECTOR_TEST_RUN_DIR": str(self.run_dir), **env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
        assert done.returncode == 0
        assert done.stdout == b""
        assert done.stderr.count(b"\n") <= 1
        return done.stderr.decode("ascii")

    def prolog(self, **env: str | bytes) -> str:
        return self.run(PROLOG, **(JOB | env))

    def epilog(self, **env: str | bytes) -> str:
        return self.run(EPILOG, **(JOB | env))

    def manifest(self) -> dict[str, str]:
        lines = (self.job / "manifest").read_text("utf-8", "surrogateescape").split("\n")
        assert lines[-2:] == ["end", ""]
        return dict(line.split("=", 1) for line in lines[:-2])

    def tree(self) -> list[str]:
        return sorted(str(path.relative_to(self.run_dir)) for path in self.run_dir.rglob("*"))

    def ended(self) -> list[Path]:
        return sorted((self.run_dir / "ended").iterdir())

    def is_whole(self) -> bool:
        """Whether the job's directory is as the contract says, ready for its tasks."""
        raw = (self.job / "raw").stat()
        return (
            self.manifest()["job_id"] == "42"
            and raw.st_uid == NOBODY
            and stat.S_IMODE(raw.st_mode) == 0o700
        )


EMPTY = ["control", "ended", "jobs", "prom"]
