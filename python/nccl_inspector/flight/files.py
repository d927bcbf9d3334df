# SPDX-License-Identifier: Apache-2.0
"""Find the dumps in a directory, and read each in a child with limits."""

import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.flight.calls import DEFAULT_GROUP, Evidence, RankDump, world_of
from nccl_inspector.flight.dump import RANK_MAX, from_wire, parse_dump, to_wire
from nccl_inspector.model.wording import elapsed
from nccl_inspector.system.limited import Limits, run_limited
from nccl_inspector.system.printable import plain

BYTES_MAX = 64 << 20  # of a file; 2000 records with their stacks are 1 MB
FILES_MAX = 1 << 17
# All ranks dump at about the same time. A file that is so much older is of another run.
_OLDER_S = 3600
# Dumps that are written so near to each other are of one failure.
_TOGETHER_S = 60
# PyTorch adds the rank to the prefix that it was given. Programs that write their own dumps put a
# host or a time before or behind it.
_ENDING = re.compile(r"(?P<json>\.json)?(?:\.pickle|\.pkl|\.pt)?$")
_IS_NAMED = re.compile(r".*[0-9](?:\.json)?(?:\.pickle|\.pkl|\.pt)?")
_AFTER_RANK = re.compile(r"(?i)rank[_-]?([0-9]{1,9})(?![0-9A-Za-z])")
_TIME = re.compile(
    r"[0-9]{8}[T_-]?[0-9]{6}|[0-9]{4}-[0-9]{2}-[0-9]{2}[T_-][0-9]{2}[-:.]?[0-9]{2}[-:.]?[0-9]{2}"
    r"|(?<![0-9])1[5-9][0-9]{8}(?:[0-9]{3})?(?![0-9])"
)
_NUMBER = re.compile(r"[0-9]{1,9}")
_DISPUTED = "its name says rank {0}, and so does that of another file that is not of this rank"
_BEYOND = "its name says rank {0:,}, and the job has {1:,} ranks"
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


def _is_named(path: Path) -> bool:
    return bool(_IS_NAMED.fullmatch(path.name))


def _words(path: Path) -> tuple[str, bool]:
    """Return a name without its ending and its times, and whether it is JSON."""
    ending = _ENDING.search(path.name)
    stem = path.name[: ending.start()] if ending else path.name
    return _TIME.sub("T", stem), bool(ending and ending["json"])


def _number_after_rank(stem: str) -> int | None:
    found = _AFTER_RANK.findall(stem)
    return int(found[-1]) if found else None


def _number_at(place: int) -> Callable[[str], int | None]:
    """Return what takes the number at a place of a name, from the left or (negative) the right."""

    def take(stem: str) -> int | None:
        found = _NUMBER.findall(stem)
        return int(found[place]) if -len(found) <= place < len(found) else None

    return take


def _ranks_of(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the rank that each name says; names that say none are not in it.

    It is the number behind the word `rank`, else the last one. If that is the same for several, it
    is the number by which all files are ranks from 0 on, if there is one.
    """
    stems = {path: _words(path)[0] for path in paths}

    def by(take: Callable[[str], int | None]) -> dict[Path, int]:
        found = {path: take(stem) for path, stem in stems.items()}
        return {path: rank for path, rank in found.items()
                if rank is not None and rank <= RANK_MAX}  # fmt: skip

    after, last = by(_number_after_rank), by(_number_at(-1))
    if len(after) == len(stems) and (len(set(after.values())) > 1 or len(stems) == 1):
        return after
    if len(set(last.values())) == len(stems):
        return last
    for place in (-2, -3, 0, 1):
        other = by(_number_at(place))
        if sorted(other.values()) == list(range(len(stems))):
            return other
    return last


def _listed(folder: Path) -> list[Path]:
    """Return what is in a directory and has the name of a dump."""
    try:
        with os.scandir(folder) as entries:
            found = [Path(one.path) for one in entries if _is_named(Path(one.name))]
    except OSError as err:
        raise InspectorError(f"{folder}: {os.strerror(err.errno or 0)}") from err
    if len(found) > FILES_MAX:
        raise InspectorError(f"{folder}: more than {FILES_MAX:,} files")
    return sorted(found)


def _stamped(path: Path, rank: int | None, uid: int | None) -> DumpFile | Refusal:
    if rank is None or not _is_named(path):
        return Refusal(path, None, "its name does not end in the number of a rank")
    try:
        status = path.stat()
    except OSError as err:
        return Refusal(path, rank, os.strerror(err.errno or 0))
    if not stat.S_ISREG(status.st_mode):
        return Refusal(path, rank, _NOT_REGULAR)
    if uid is not None and status.st_uid != uid:
        return Refusal(path, None, _FOREIGN)
    return DumpFile(path, rank, _words(path)[1], status.st_mtime_ns)


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


def _disputed(files: Sequence[DumpFile]) -> list[DumpFile]:
    """Return the files whose names say one rank, although they are of several hosts or writers.

    That is so if they have other numbers that differ, were written at one time, and the word
    `rank` says nothing. Dumps of one rank from two attempts, or under two prefixes, are not: the
    newest of them counts.
    """
    by_rank: dict[int, list[DumpFile]] = defaultdict(list)
    for one in files:
        by_rank[one.rank].append(one)
    found = []
    for rank, claims in by_rank.items():
        if all(_number_after_rank(_words(one.path)[0]) == rank for one in claims):
            continue
        others = {tuple(_numbers_without(one, rank)) for one in claims}
        times = [one.written_ns for one in claims]
        if len(others) > 1 and max(times) - min(times) < _TOGETHER_S * 10**9:
            found += claims
    return found


def _numbers_without(file: DumpFile, rank: int) -> list[str]:
    """Return the numbers of a name but that of its rank."""
    numbers = _NUMBER.findall(_words(file.path)[0])
    at = next((at for at in reversed(range(len(numbers))) if int(numbers[at]) == rank), None)
    return [one for place, one in enumerate(numbers) if place != at]


def _whole(dumps: Iterable[RankDump]) -> frozenset[int]:
    """Return the ranks of the group of all, if all dumps that name it name the same."""
    found = {
        frozenset(group.ranks)
        for one in dumps
        for group in one.dump.groups
        if group.desc == DEFAULT_GROUP and group.ranks
    }
    return next(iter(found)) if len(found) == 1 else frozenset()


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
    ranks_said = _ranks_of(dict.fromkeys(named))
    stamped = [_stamped(one, ranks_said.get(one), uid) for one in dict.fromkeys(named)]
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
    young = [one for one in files if one not in old]
    disputed = _disputed(young)
    refused += [Refusal(one.path, None, _DISPUTED.format(one.rank)) for one in disputed]
    chosen = _chosen([one for one in young if one not in disputed])
    dumps: dict[int, RankDump] = {}
    works = [partial(_read, one.path, uid) for one in chosen]
    for number, answer in run_limited(works, limits):
        file = chosen[number]
        if isinstance(answer, RefusedError):
            refused.append(Refusal(file.path, file.rank, _reason(answer)))
        else:
            dumps[file.rank] = RankDump(file.rank, from_wire(answer), file.written_ns)
    named_ranks = _whole(dumps.values())
    beyond = [rank for rank in dumps if named_ranks and rank not in named_ranks]
    for rank in beyond:
        del dumps[rank]
    refused += [
        Refusal(one.path, None, _BEYOND.format(one.rank, len(named_ranks)))
        for one in chosen if one.rank in beyond
    ]  # fmt: skip
    unreadable = frozenset(one.rank for one in refused if one.rank is not None)
    if disputed or beyond:
        # Any rank may be in a file that is not used.
        unreadable |= named_ranks or frozenset(range(len(files)))
    dumps = dict(sorted(dumps.items()))
    world = world_of(dumps, {*unreadable, *(one.rank for one in old)}, ranks)
    evidence = Evidence(dumps, unreadable - dumps.keys(), world)
    return Found(evidence, tuple(sorted(refused, key=lambda one: str(one.path))), tuple(chosen))
