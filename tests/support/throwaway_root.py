# SPDX-License-Identifier: Apache-2.0
"""A copy of this machine's root directory in which a test may install, thrown away afterwards."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# Changes go to a tmpfs in a mount namespace of its own; what is mounted below / is not in it.
_SCRIPT = """
set -e
mount -t tmpfs none "$0"
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay none -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0/root"
# What lies beside the empty directory is the test's: also where /tmp is a file system of its own.
beside=${0%/*}
mkdir -p "$0/root$beside"
mount --bind "$beside" "$0/root$beside"
mount -t proc none "$0/root/proc"
mount --rbind /dev "$0/root/dev"
printf '#!/bin/sh\\nexit 101\\n' >"$0/root/usr/sbin/policy-rc.d"
chmod 755 "$0/root/usr/sbin/policy-rc.d"
exec chroot "$0/root" /bin/sh -ec "$1"
"""


def run_in_copy(
    place: Path, script: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a shell script in the copy; `place` is an empty directory for it.

    It begins with nothing that an earlier run has changed.
    """
    apart: Sequence[str] = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    return subprocess.run(
        [*apart, "sh", "-c", _SCRIPT, str(place), script],
        env={**os.environ, **(env or {})}, cwd="/", capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip


def can_copy(place: Path) -> bool:
    """Tell whether this machine lets us do that."""
    return os.geteuid() == 0 and run_in_copy(place, "true").returncode == 0
