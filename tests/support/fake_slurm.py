# SPDX-License-Identifier: Apache-2.0
"""Commands of Slurm that say what a test wants, or what they said of a recorded job."""

from dataclasses import replace
from pathlib import Path

from nccl_inspector.settings.config import parse_config
from tests.support.recorded_slurm import DELIMITER, load


class Slurm:
    """A directory with commands that say what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = replace(parse_config("", "test"), scontrol=folder / "scontrol")
        self.put("scontrol", "echo slurm 22.05.8; [ $1 = --version ] || exit 1")
        self.put("sacct", "exit 1")

    def put(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def says(self, name: str, kind: str) -> None:
        """Let a program say what it said of a recorded job of 22.05."""
        said = load("22.05")
        (self.folder / f"{name}.said").write_text(said.output(kind, name))
        first = "slurm 22.05.8" if name == "scontrol" else " ".join(said.columns(kind))
        self.put(
            name,
            f'case $1 in --version|--helpformat) echo "{first}"; exit;; esac\n'
            f"for word; do case $word in --delimiter=*) d=${{word#*=}};; esac; done\n"
            f'sed "s/{DELIMITER}/$d/g" {self.folder}/{name}.said',
        )
