"""What Slurm's commands said, recorded by `python -m tests.tools.record_slurm`."""

import json
from dataclasses import dataclass
from pathlib import Path

DELIMITER = "@#@"


def folder() -> Path:
    """Where the recordings are, a file a release."""
    return Path(__file__).with_name("recorded_slurm_data")


@dataclass(frozen=True, slots=True)
class Recording:
    """The jobs of one release by their kind, and what was said of each."""

    slurm: str
    ids: dict[str, int]
    said: dict[str, list[dict[str, str | list[str]]]]

    def output(self, kind: str, program: str) -> str:
        """What a program printed about the job of a kind."""
        return next(str(one["output"]) for one in self.said[kind] if one["argv"][0] == program)

    def columns(self, kind: str) -> list[str]:
        """The columns that sacct was asked for."""
        words = next(one["argv"] for one in self.said[kind] if one["argv"][0] == "sacct")
        asked = next(word for word in words if word.startswith("--format="))
        return asked.removeprefix("--format=").split(",")


def load(release: str) -> Recording:
    """The recording of a release, `22.05`."""
    return Recording(**json.loads((folder() / f"{release}.json").read_text()))
