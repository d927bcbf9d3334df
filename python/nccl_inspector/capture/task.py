# SPDX-License-Identifier: Apache-2.0
"""What a task of a Slurm step does with a large capture; the tasks share a directory.

There are three rounds: reading the lines, and the two looks at all operations. Each round has
numbered items: pieces of the files (pieces.py), or shares of the operations (shares.py). A task
takes the next item that nobody has taken, writes Parquet files, and puts its notes beside them
last. What a task that died had taken is left without notes, and is done again.
"""

import fcntl
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from nccl_inspector.capture import collectives, first_look, second_look
from nccl_inspector.capture.capture_files import CaptureFile
from nccl_inspector.capture.contents import Bursts
from nccl_inspector.capture.exchange import read_tables, write_tables
from nccl_inspector.capture.file_parts import Part
from nccl_inspector.capture.pieces import Piece
from nccl_inspector.capture.reader import Notes, Reader, connect, parquet, reason_of
from nccl_inspector.capture.shared_work import refuse_others
from nccl_inspector.system.atomic import replace_path
from nccl_inspector.system.clock import boot_id

_WAIT_S = 0.2
TAKEN = "taken"
MARK = b"nccl-inspector-task "  # before what a task tells the command; JSON follows
_LOOKED_FOR = 8  # files of the capture


def put(path: Path, what: object) -> None:
    """Write JSON to a file of the shared directory, whole or not at all."""
    replace_path(path, json.dumps(what).encode(), 0o600)


def plan_path(work: Path, round_: str) -> Path:
    """Return the file that says what is to be done in a round; it has the number of `items`."""
    return work / f"{round_}.plan"


def notes_path(work: Path, round_: str, at: int) -> Path:
    """Return the file that is there when an item is done."""
    return work / f"{round_}.{at}.json"


def notes(work: Path, round_: str, at: int) -> Any:
    """Return what is noted about an item that is done."""
    return json.loads(notes_path(work, round_, at).read_text())


def notes_of_piece(work: Path, said: dict[str, Any]) -> Notes:
    """Return what was found in a piece, from what is noted about it."""
    found = Notes(
        {int(at): [str(work / name) for name in names] for at, names in said["parts"].items()},
        unreadable=set(said["unreadable"]),
        metadata={int(at): metadata for at, metadata in said["metadata"].items()},
    )
    found.refused.update(said["refused"])
    found.unknown.update(said["unknown"])
    return found


@dataclass(frozen=True, slots=True)
class _Item:
    """One item of a round."""

    work: Path
    at: int
    plan: dict[str, Any]
    own: str  # name for its files, which no other attempt at this item has
    sql: duckdb.DuckDBPyConnection

    def folder(self) -> Path:
        made = self.work / self.own
        made.mkdir(mode=0o700)
        return made


def cpus() -> int:
    """Return how many CPUs Slurm gives a task; not all clusters bind tasks to theirs."""
    said = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(said) if said.isdecimal() and int(said) else 1


@contextmanager
def _database(work: Path, own: str) -> Iterator[duckdb.DuckDBPyConnection]:
    spilled = work / f"{own}.spilled"
    spilled.mkdir(mode=0o700)
    sql = connect(spilled, cpus())
    try:
        yield sql
    finally:
        sql.close()
        shutil.rmtree(spilled, ignore_errors=True)


def _read(item: _Item) -> object:
    """Read a piece of the files."""
    plan = item.plan
    files = [CaptureFile(**one) for one in plan["files"]]
    said = plan["pieces"][item.at]
    piece = Piece(said["files"], Part(**said["part"]) if said["part"] else None)
    reader = Reader(
        item.sql, Path(plan["directory"]), item.work, plan["everything"], f"{item.own}-",
        plan["shares"],
    )  # fmt: skip
    if piece.part is None:
        reader.read(files, piece.files)
    else:
        reader.read_part(files[piece.files[0]], piece.files[0], piece.part)
    found = reader.notes
    return {
        "parts": {
            share: [str(Path(one).relative_to(item.work)) for one in names]
            for share, names in found.parts.items()
        },
        "refused": dict(found.refused),
        "unknown": dict(found.unknown),
        "unreadable": sorted(found.unreadable),
        "metadata": found.metadata,
    }


def _view_lines(item: _Item) -> None:
    names = [str(item.work / name) for name in item.plan["parts"][item.at]]
    item.sql.execute(f"create view lines as from {parquet(names)}")


def _look(item: _Item) -> object:
    """Look at a share for the first time."""
    _view_lines(item)
    once = item.plan["once"]
    removed = first_look.look(item.sql, once)
    if removed is None:
        return {"removed": None}
    folder = item.folder()
    write_tables(item.sql, (*first_look.TABLES, *collectives.STATE), folder)
    if once:
        write_tables(item.sql, [collectives.ONCE], folder)
    return {"removed": removed, "folder": folder.name}


def _look_again(item: _Item) -> object:
    """Look at a share for the second time."""
    sql, plan = item.sql, item.plan
    before = item.work / plan["folders"][item.at]
    if plan["once"]:
        read_tables(sql, [collectives.ONCE], [before], "view")
        sql.execute(f"create view ops as from {collectives.ONCE}")
    else:
        _view_lines(item)
        first_look.view_operations(sql)
    read_tables(sql, collectives.STATE, [before], "view")
    collectives.view_joined(sql)
    read_tables(sql, second_look.NEEDS, [item.work / plan["needs"]])
    bursts = Bursts(*plan["bursts"]) if plan["bursts"] else None
    second_look.look(sql, second_look.Question(plan["window_s"], bursts))
    folder = item.folder()
    write_tables(sql, second_look.TABLES, folder)
    return {"folder": folder.name}


READ, LOOK, LOOK_ONCE, LOOK_AGAIN = "read", "look", "once", "again"
_ROUNDS: dict[str, Callable[[_Item], object]] = {
    READ: _read, LOOK: _look, LOOK_ONCE: _look, LOOK_AGAIN: _look_again,
}  # fmt: skip


def do_item(work: Path, round_: str, plan: dict[str, Any], at: int) -> None:
    """Do one item of a round, and put its notes there last."""
    own = f"{round_}-{at}-{secrets.token_hex(4)}"
    with _database(work, own) as sql:
        said = _ROUNDS[round_](_Item(work, at, plan, own, sql))
    put(notes_path(work, round_, at), said)


def _is_mine(work: Path, step: str, at: int) -> bool:
    """Take an item for this process; False: another one has it."""
    try:
        os.close(
            os.open(work / f"{step}.{at}.{TAKEN}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        )
    except FileExistsError:
        return False
    return True


def _first_item(items: int) -> int:
    """Return where this task begins, so that tasks do not all ask for the same items."""
    try:
        return int(os.environ["SLURM_PROCID"]) * items // int(os.environ["SLURM_NTASKS"]) % items
    except (KeyError, ValueError, ZeroDivisionError):
        return 0


@contextmanager
def _own_cpu(work: Path, step: str) -> Iterator[None]:
    """Wait until one of this task's CPUs is used by no other task of this step.

    Tasks that take turns on a CPU push each other's data out of its caches: eight tasks on two CPUs
    need a quarter more CPU time, and four times the memory. The lock of a file stands for a CPU of
    a host, and is gone when the process is.
    """
    while (held := _hold_any(work, f"{step}.{_host()}.cpu")) is None:
        time.sleep(_WAIT_S)
    try:
        yield
    finally:
        os.close(held)


def _host() -> str:
    return boot_id() or os.uname().nodename


def _hold_any(work: Path, prefix: str) -> int | None:
    """Return the descriptor that holds a CPU; None: all are held.

    Where there are no locks, it holds nothing.
    """
    for cpu in sorted(os.sched_getaffinity(0)):
        fd = os.open(work / f"{prefix}{cpu}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        except OSError:
            pass
        return fd
    return None


def _sees(path: Path) -> bool:
    try:
        path.stat()
    except OSError:
        return False
    return True


def _sees_capture(plan: dict[str, Any]) -> bool:
    """Tell whether this node has the files; an empty directory may be in their place."""
    some = plan["files"][:_LOOKED_FOR]
    return any(_sees(Path(plan["directory"]) / one["name"]) for one in some)


def _tell(unseen: str) -> None:
    """Tell the command of which job this task is, and which directory its node does not see."""
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    said = {"job": os.environ.get("SLURM_JOB_ID", ""), "node": node, "unseen": unseen}
    sys.stdout.buffer.write(MARK + json.dumps(said).encode() + b"\n")
    sys.stdout.buffer.flush()


def main(words: Sequence[str]) -> int:
    """Be one task: do items until none is left. The words are directory, round and step."""
    work, round_, step = Path(words[0]), words[1], words[2]
    if not _sees(work):
        _tell(str(work.parent))
        return 0
    try:
        refuse_others(work)
        plan = json.loads(plan_path(work, round_).read_text())
        if round_ == READ and not _sees_capture(plan):
            _tell(plan["directory"])
            return 0
        _tell("")
        first = _first_item(plan["items"])
        with _own_cpu(work, step):
            for at in (*range(first, plan["items"]), *range(first)):
                if not notes_path(work, round_, at).exists() and _is_mine(work, step, at):
                    do_item(work, round_, plan, at)
    except (OSError, ValueError, duckdb.Error) as err:
        print(f"nccl-inspector: {work}: {reason_of(err)}", file=sys.stderr)
        return 1
    return 0
