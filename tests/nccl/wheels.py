# SPDX-License-Identifier: Apache-2.0
"""NCCL's releases, as NVIDIA publishes them for Python."""

import subprocess
import sys
from pathlib import Path

from tests.support.repository import BUILD

PACKAGE = "nvidia-nccl-cu12"
LIBRARY = Path("nvidia", "nccl", "lib", "libnccl.so.2")
# The last of each minor release from 2.27 on, and the first.
RELEASES = ("2.27.3", "2.27.7", "2.28.9", "2.29.7", "2.30.7", "2.31.2", "2.32.3")
# NCCL_PROFILER_PLUGIN with a path opens nothing there; `libX.so` on the loader's path does.
NAME_ONLY = ("2.27.3",)


def fetch(release: str) -> Path:
    """Return the library of a release; pip downloads what is not there yet (some 300 MB).

    Raises:
        subprocess.CalledProcessError: pip cannot download it.
    """
    place = BUILD / "nccl" / release
    if not place.exists():
        beside = place.with_suffix(".part")
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--upgrade", "--target", str(beside), f"{PACKAGE}=={release}"),
        ]
        subprocess.run(command, check=True)
        beside.rename(place)
    return place / LIBRARY
