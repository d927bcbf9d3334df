# SPDX-License-Identifier: Apache-2.0
"""Find the dumps in a directory, and read each in a child with limits."""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.flight.calls import Evidence, RankDump, world_of
from nccl_inspector.flight.dump import RANK_MAX, from_wire, parse_dump, to_wire
from nccl_inspector.model.wording import elapsed
from nccl_inspector.system.limited import Limits, run_limited
from nccl_inspector.system.printable import plain

BYTES_MAX = 64 << 20  # of a file; 2000 records with their stacks are 1 MB
FILES_MAX = 1 << 17
# All ranks dump at about the same time. A file that is so much older is of another run.
_OLDER_S = 3600
# PyTorch adds the rank to the prefix that it was given.
_NAME = re.compile(r"(?P<stem>.*?(?P<rank>[0-9]{1,9}))(?P<json>\.json)?(?:\.pickle|\.pkl|\.pt)?")
_NOT_REGULAR = "it is no regular file"
_FOREIGN = "it is not the job's user's"
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file that may be a dump."""

    path: Path
    rank: int
    is_json: bool
    written_ns: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A file that was not used, and why."""

    path: Path
    rank: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """What was read: the evidence, and the files that could not be used."""

    evidence: Evidence
    refused: tuple[Refusal, ...]
    files: tuple[DumpFile, ...]


def _named(path: Path) -> re.Match[str] | None:
    match = _NAME.fullmatch(path.name)
    return match if match and int(match["rank"]) <= RANK_MAX else None


def _listed(folder: Path) -> list[Path]:
    """Return what is in a directory and has the name of a dump."""
    try:
        with os.scandir(folder) as entries:
            found = [Path(one.path) for one in entries if _named(Path(one.name))]
    except OSError as err:
        raise InspectorError(f"{folder}: {os.strerror(err.errno or 0)}") from err
    if len(found) > FILES_MAX:
        raise InspectorError(f"{folder}: more than {FILES_MAX:,} files")
    return sorted(found)


def _stamped(path: Path, uid: int | None) -> DumpFile | Refusal:
    match = _named(path)
    if match is None:
        return Refusal(path, None, "its name does not end in the number of a rank")
    rank = int(match["rank"])
    try:
        status = path.stat()
    except OSError as err:
        return Refusal(path, rank, os.strerror(err.errno or 0))
    if not stat.S_ISREG(status.st_mode):
        return Refusal(path, rank, _NOT_REGULAR)
    if uid is not None and status.st_uid != uid:
        return Refusal(path, None, _FOREIGN)
    return DumpFile(path, rank, bool(match["json"]), status.st_mtime_ns)


def _chosen(files: Iterable[DumpFile]) -> list[DumpFile]:
    """Return one file for each rank: the newest, and a pickle rather than its JSON form.

    JSON has no stacks.
    """
    pickles = {one.path for one in files if not one.is_json}
    best: dict[int, DumpFile] = {}
    for one in files:
        if one.is_json and one.path.with_suffix("") in pickles:
            continue
        if one.rank not in best or one.written_ns > best[one.rank].written_ns:
            best[one.rank] = one
    return sorted(best.values(), key=lambda one: one.rank)


def _read(path: Path, uid: int | None) -> bytes:
    """Return a dump as JSON; this runs in a child.

    Raises:
        RefusedError: it is no dump.
        OSError: it cannot be read.
    """
    fd = os.open(path, _FLAGS)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError("not_regular", _NOT_REGULAR)
    if uid is not None and status.st_uid != uid:
        raise RefusedError("wrong_owner", _FOREIGN)
    if status.st_size > BYTES_MAX:
        raise RefusedError("too_big", f"it has more than {BYTES_MAX >> 20} MiB")
    with os.fdopen(fd, "rb") as stream:
        return to_wire(parse_dump(stream.read(BYTES_MAX)))


def _reason(err: RefusedError) -> str:
    return plain(str(err).removeprefix(err.reason).removeprefix(": ")) or err.reason


def read_dumps(
    paths: Sequence[Path],
    ranks: int | None = None,
    limits: Limits | None = None,
    uid: int | None = None,
) -> Found:
    """Return the dumps in these files and directories.

    `ranks` is how many ranks the job has. `uid`: a dump of another user is refused (None: of none).

    Raises:
        InspectorError: a directory cannot be read, or nothing in it has the name of a dump.
    """
    named: list[Path] = []
    for path in paths:
        named += _listed(path) if path.is_dir() else [path]
    stamped = [_stamped(one, uid) for one in dict.fromkeys(named)]
    refused = [one for one in stamped if isinstance(one, Refusal)]
    files = [one for one in stamped if isinstance(one, DumpFile)]
    if not files and not refused:
        raise InspectorError(
            f"{paths[0]}: no dump of a flight recorder; a dump's name ends in the rank's number"
        )
    newest_ns = max((one.written_ns for one in files), default=0)
    old = [one for one in files if newest_ns - one.written_ns > _OLDER_S * 10**9]
    refused += [
        Refusal(one.path, None, f"it is {elapsed((newest_ns - one.written_ns) / 1e9)} older than "
                "the newest dump, so it may be of another run")
        for one in old
    ]  # fmt: skip
    chosen = _chosen([one for one in files if one not in old])
    dumps: dict[int, RankDump] = {}
    works = [partial(_read, one.path, uid) for one in chosen]
    for number, answer in run_limited(works, limits):
        file = chosen[number]
        if isinstance(answer, RefusedError):
            refused.append(Refusal(file.path, file.rank, _reason(answer)))
        else:
            dumps[file.rank] = RankDump(file.rank, from_wire(answer), file.written_ns)
    unreadable = frozenset(one.rank for one in refused if one.rank is not None)
    dumps = dict(sorted(dumps.items()))
    world = world_of(dumps, {*unreadable, *(one.rank for one in old)}, ranks)
    evidence = Evidence(dumps, unreadable - dumps.keys(), world)
    return Found(evidence, tuple(sorted(refused, key=lambda one: str(one.path))), tuple(chosen))
