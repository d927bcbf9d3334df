# SPDX-License-Identifier: Apache-2.0
"""The list of suspect nodes that every user may read: `slow-nodes.json` in store_dir.

The controller service writes it from the index of all jobs, which users may not read. It has
figures of nodes only: no job, no user, and no node that did not stand out.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from nccl_inspector.analysis.history.node_score import NodeScore
from nccl_inspector.errors import RefusedError
from nccl_inspector.system.atomic import replace_path
from nccl_inspector.system.checked_json import Checks, dump
from nccl_inspector.system.object_store import ObjectStore
from nccl_inspector.system.safe_files import read_owners

SUSPECTS = "slow-nodes.json"
NODES = "nodes"  # its folder in an object store
FORMAT = 1
JOBS_LOOKED_AT = 1000
OLD_S = 86400.0  # the service writes it each hour
_BYTES_MAX = 1 << 20
_COUNT_MAX = 1 << 31
_CHECKS = Checks("unreadable")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node on which jobs were slow again and again. `depth`: as in NodeScore, -0.15 is 15 %."""

    node: str
    slow: bool
    depth: float | None
    jobs: int
    users: int
    named: int  # jobs with a warning about the node
    named_by: int  # users of these


@dataclass(frozen=True, slots=True)
class SuspectList:
    """The suspects, the worst first, among the nodes of the latest `jobs` jobs."""

    made_s: float
    jobs: int
    suspects: tuple[Suspect, ...]


def suspects_of(scores: Sequence[NodeScore]) -> tuple[Suspect, ...]:
    """Return the suspects among the scored nodes, in the same order."""
    return tuple(
        Suspect(
            one.node, "slow" in one.reasons, one.depth, one.jobs, one.users, one.named,
            one.named_by,
        )
        for one in scores
        if one.suspect
    )  # fmt: skip


def write_suspects(store_dir: Path, listed: SuspectList, objects: ObjectStore | None) -> None:
    """Replace the list, also in an object store. Raises OSError: an old one stays."""
    rows = [
        {
            "node": one.node, "slow": one.slow, "bandwidth_change": one.depth, "jobs": one.jobs,
            "users": one.users, "named_in_jobs": one.named, "named_by_users": one.named_by,
        }
        for one in listed.suspects
    ]  # fmt: skip
    data = dump(
        {"format": FORMAT, "made_s": int(listed.made_s), "jobs": listed.jobs, "suspects": rows}
    )
    replace_path(store_dir / SUSPECTS, data + b"\n", 0o644)
    if objects:
        objects.put(f"{NODES}/{SUSPECTS}", data + b"\n")


def _suspect(row: Any) -> Suspect:
    words = _CHECKS.table(row)
    depth = words.get("bandwidth_change")
    if isinstance(depth, int | float) and not isinstance(depth, bool):
        depth = _CHECKS.figure(depth + 1, 1.0) - 1  # a fraction that is missing
    elif depth is not None:
        raise _CHECKS.refused("invalid number")
    counts = [
        _CHECKS.integer(words.get(name), _COUNT_MAX)
        for name in ("jobs", "users", "named_in_jobs", "named_by_users")
    ]
    return Suspect(
        _CHECKS.text(words.get("node")),
        words.get("slow") is True,
        depth,
        *counts,
    )


def fetch_suspects(objects: ObjectStore) -> SuspectList | None:
    """Return the list in an object store, as `read_suspects` does that in a directory."""
    file = BytesIO()
    try:
        objects.fetch(f"{NODES}/{SUSPECTS}", file, _BYTES_MAX)
    except FileNotFoundError:
        return None
    return _parse(file.getvalue())


def read_suspects(store_dir: Path) -> SuspectList | None:
    """Return the list; None: the service has not written one.

    Raises:
        RefusedError: it is not such a list, or another release wrote it.
        OSError: it cannot be read.
    """
    try:
        fd = os.open(store_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        data = read_owners(SUSPECTS, _BYTES_MAX, fd)
    finally:
        os.close(fd)
    return None if data is None else _parse(data)


def _parse(data: bytes) -> SuspectList:
    words = _CHECKS.table(_CHECKS.load(data))
    if words.get("format") != FORMAT:
        raise RefusedError("format", "written by another release")
    return SuspectList(
        float(_CHECKS.time(words.get("made_s"))),
        _CHECKS.integer(words.get("jobs"), _COUNT_MAX),
        tuple(map(_suspect, _CHECKS.rows(words.get("suspects")))),
    )
