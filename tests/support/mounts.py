# SPDX-License-Identifier: Apache-2.0
"""File systems that a test mounts, and fills."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, *words: str) -> Iterator[None]:
    done = subprocess.run(["mount", *words, str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> int:
    """Take every page that is left, as whoever may write there; return how many bytes."""
    path = place / "fill"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    found = os.statvfs(place)
    assert found.f_bfree == 0
    return path.stat().st_size
