# SPDX-License-Identifier: Apache-2.0
"""Lists of NCCL versions: the setting deny_nccl, and the list that comes with the package."""

from functools import cache
from typing import NamedTuple

from nccl_inspector.system.tsv import read_tsv

RECOMMENDED = "recommended"  # in the setting: the versions of the table


class Advised(NamedTuple):
    """NCCL versions that are better not measured."""

    versions: str  # 2.31.2 or 2.28.0-2.28.5
    reason: str
    reference: str


@cache
def advised() -> tuple[Advised, ...]:
    """Return the table."""
    return tuple(Advised(*row) for row in read_tsv("settings/deny_nccl.tsv"))


def _parsed(text: str) -> tuple[int, int, int]:
    major, minor, patch = text.split(".")
    return int(major), int(minor), int(patch)


def is_listed(version: tuple[int, int, int], versions: str) -> bool:
    """Tell whether a list, such as `recommended,2.28.0-2.28.5`, has a version."""
    for part in versions.split(",") if versions else ():
        if part == RECOMMENDED:
            if advice_on(version):
                return True
            continue
        first, _, last = part.partition("-")
        if _parsed(first) <= version <= _parsed(last or first):
            return True
    return False


def advice_on(version: tuple[int, int, int]) -> Advised | None:
    """Return the line of the table that has a version; None: it may be measured."""
    return next((one for one in advised() if is_listed(version, one.versions)), None)
