# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's flight recorder says of a job, as findings beside those that were measured.

The dumps are files of the job's user, who can write anything into them. So they accuse nobody that
anything else would be held against, they are never critical, and they change no verdict. They are
listed, read and matched in a child.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.flight.describe import Told, describe
from nccl_inspector.flight.files import read_dumps
from nccl_inspector.model.card import (
    CRITICAL,
    HEALTHY,
    INFO,
    LOW,
    WARNING,
    Finding,
    Period,
    Verdict,
)
from nccl_inspector.model.rules import BY_ID, KILLED, About, ids_about
from nccl_inspector.model.wording import number
from nccl_inspector.report.announced_paths import hangs
from nccl_inspector.system.limited import LateError, Limits, run_limited

CPU_S, WALL_S = 20, 60.0
_LIMITS = Limits(CPU_S, WALL_S)
_SAID_MAX = 3
_FILES_MAX = 1 << 17
# As the SPANK plugin names them (spank/taskenv.c).
_NAME = r"nccl-inspector-{}\.(?P<step>batch|[0-9]{{1,10}})-fr-rank_[0-9]{{1,9}}"


@dataclass(frozen=True, slots=True)
class Said:
    """One finding of the dumps; `roots` are names as `rank 2`."""

    rule: str
    title: str
    detail: str
    period: Period | None
    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobDumps:
    """What the dumps of a job's newest step say; `detail` says how many there are."""

    detail: str
    said: tuple[Said, ...]


# In the child.


def _newest_step(folder: Path, job_id: int) -> list[Path]:
    """Return the dumps of the step that wrote one last."""
    pattern = re.compile(_NAME.format(job_id))
    steps: dict[str, list[tuple[int, Path]]] = {}
    with os.scandir(folder) as entries:
        for one in entries:
            match = pattern.fullmatch(one.name)
            if match and len(steps) < _FILES_MAX:
                written_ns = one.stat(follow_symlinks=False).st_mtime_ns
                steps.setdefault(match["step"], []).append((written_ns, Path(one.path)))
    newest = max(steps.values(), key=max, default=[])
    return sorted(path for _, path in newest[:_FILES_MAX])


def _row(one: Finding) -> list[Any]:
    period = [one.period.start_s, one.period.end_s] if one.period else None
    return [one.rule, one.title, one.detail, period, [who.name for who in one.entities]]


def _look(folder: Path, job_id: int, uid: int) -> bytes:
    """Return what a job's dumps say, as JSON; nothing if there are none."""
    paths = _newest_step(folder, job_id)
    if not paths:
        return b""
    try:
        told: Told = describe(read_dumps(paths, limits=_LIMITS, uid=uid))
    except InspectorError:
        return b""
    detail = f"{told.dumps:,} of {number(told.ranks, 'rank')} in {folder}"
    rows = [_row(one) for one in told.findings if one.severity is CRITICAL]
    return json.dumps([detail, rows[:_SAID_MAX]]).encode()


# In the caller.


def read_job_dumps(folder: Path, job_id: int, uid: int) -> JobDumps | None:
    """Return what the dumps in a job's directory say; None: there are none, or no answer came."""
    ((_, answer),) = run_limited([partial(_look, folder, job_id, uid)], _LIMITS)
    if isinstance(answer, LateError):
        hangs(answer.pid)
    if isinstance(answer, RefusedError) or not answer:
        return None
    detail, rows = json.loads(answer)
    said = (
        Said(rule, title, text, Period(*period) if period else None, tuple(roots))
        for rule, title, text, period, roots in rows
    )
    return JobDumps(detail, tuple(said))


def agreement(ranks: Collection[str], findings: Sequence[Finding]) -> str:
    """Return a sentence about who failed or holds up the others by the measurements.

    `ranks`: who did by what was written, as `rank 2`. The measurements are what counts.
    """
    measured = measured_roots(findings)
    if not measured or not ranks:
        return ""
    if not measured.isdisjoint(ranks):
        return " The measurements name the same rank."
    return " The measurements name another rank, and they are what counts."


def measured_roots(findings: Sequence[Finding]) -> set[str]:
    """Return the ranks that hold up the others, or died first, by the measurements."""
    chosen = ids_about(About.HANG)
    return {
        who.name
        for one in findings
        if one.rule in chosen or (one.rule == KILLED.id and one.severity is CRITICAL)
        for who in one.entities
        if who.kind == "rank"
    }


def tell_dumps(
    dumps: JobDumps | None, verdict: Verdict, findings: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield what the dumps say; `verdict` and `findings` are by the measurements alone."""
    if dumps is None:
        return
    for one in dumps.said:
        rule = next((rule for id_, rule in BY_ID.items() if id_ == one.rule), None)
        if rule is None:
            continue
        yield Finding(
            rule=rule.id,
            severity=INFO if verdict.status == HEALTHY else WARNING,
            confidence=LOW,
            title=f"PyTorch's flight recorder: {one.title}",
            detail=f"{one.detail}{agreement(one.roots, findings)}",
            period=one.period,
            actions=(rule.action,) if rule.action else (),
        )
