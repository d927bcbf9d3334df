# SPDX-License-Identifier: Apache-2.0
"""Plays to the plugin how NCCL finds the times of operations: tests/native/player/check/works.c."""

import os
import subprocess
from pathlib import Path

from nccl_inspector.model.process import Process
from tests.support.boxes import read_dead_box
from tests.support.repository import BUILD
from tests.support.scripted_nccl import OURS

WORKS = BUILD / "player" / "works"
# AllReduces take the one, ReduceScatters the other.
SHORT_NS, LONG_NS = 5_000, 50_000
TURNS = 100


def play_works(place: Path, order: str, api: int, **more: str) -> Process:
    """Play an order to that interface; return what the plugin's box says. `more`: environment."""
    env = os.environ | {
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(place),
        "NCCL_INSPECTOR_PROM_DUMP": "1",
    }
    subprocess.run([WORKS, OURS, str(api), order], env=env | more, check=True)
    (path,) = place.glob("*.box")
    return read_dead_box(path)
