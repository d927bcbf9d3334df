# SPDX-License-Identifier: Apache-2.0
"""Read and join a large capture with the tasks of Slurm steps, which share a directory.

The tasks do what is in task.py, in three rounds. A round is a step. What its tasks have left is
done by another step, and after that here.
"""

import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from nccl_inspector.capture import collectives, first_look, second_look, task
from nccl_inspector.capture.contents import Source
from nccl_inspector.capture.engine import Progress
from nccl_inspector.capture.exchange import read_tables, write_tables
from nccl_inspector.capture.pieces import divide
from nccl_inspector.capture.reader import Notes, parquet, reason_of
from nccl_inspector.capture.second_look import Question
from nccl_inspector.capture.shares import SHARES_MAX
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.wording import number
from nccl_inspector.system.own_code import words_to_run

_STEPS_MAX = 2
_LOOK_S, _END_S = 0.5, 10.0
_NEEDS = "needs"


@dataclass(frozen=True, slots=True)
class _Round:
    """Items that the tasks of a step share."""

    name: str
    plan: dict[str, Any]
    item: str  # what an item is called
    done: str  # what is done with it
    sizes: Sequence[int]  # of the items, in any unit
    progress: Progress | None

    @property
    def items(self) -> int:
        return int(self.plan["items"])

    def show(self, left: Sequence[int]) -> None:
        """Show how much is done; these items are left."""
        if self.progress:
            total = sum(self.sizes)
            self.progress(total - sum(self.sizes[at] for at in left), total)


def _missing(work: Path, round_: _Round) -> list[int]:
    there = {path.name for path in work.iterdir()}
    return [
        at for at in range(round_.items) if task.notes_path(work, round_.name, at).name not in there
    ]


def _look_anew(work: Path) -> None:
    """Change the directory: NFS would answer with what it knew some seconds ago."""
    (work / "looked").touch()
    (work / "looked").unlink()


@dataclass(slots=True)
class SlurmTasks:
    """Does what engine.Workers describes with the tasks of steps.

    `work` is a directory of ours that all nodes see; `say` is told of what went wrong.
    """

    tasks: int
    work: Path
    say: Callable[[str], None]
    _parts: list[list[str]] = field(default_factory=list)  # of each share, below `work`
    _everything: bool = False
    _once: bool = False
    _folders: list[str] = field(default_factory=list)  # of each share, from the first look

    def read(self, source: Source, folder: Path, progress: Progress | None) -> Notes:
        """Read all files; `folder` is not used, because it is of this host.

        Raises:
            InspectorError: there is no srun, or `work` cannot be used.
        """
        del folder
        if shutil.which("srun") is None:
            raise InspectorError("--slurm: there is no srun here")
        self._everything, files = source.everything, source.files
        pieces = divide(files, self.tasks)
        sizes = [piece.size(files) for piece in pieces]
        plan = {
            "items": len(pieces), "directory": str(source.directory.absolute()),
            "everything": source.everything, "shares": min(self.tasks, SHARES_MAX),
            "files": [asdict(one) for one in files], "pieces": [asdict(one) for one in pieces],
        }  # fmt: skip
        with self._told():
            whole = Notes()
            for said in self._do(_Round(task.READ, plan, "piece", "read", sizes, progress)):
                whole.add(task.notes_of_piece(self.work, said))
            self._parts = [
                [str(Path(name).relative_to(self.work)) for name in names]
                for _, names in sorted(whole.parts.items())
            ]
            return whole

    def look(
        self, sql: duckdb.DuckDBPyConnection, notes: Notes, once: bool, progress: Progress | None
    ) -> int | None:
        """Look at all shares for the first time.

        Raises:
            InspectorError: `work` cannot be used.
        """
        plan = {"items": len(self._parts), "parts": self._parts, "once": once}
        with self._told():
            name = task.LOOK_ONCE if once else task.LOOK
            said = self._do(_Round(name, plan, "share", "joined", self._sizes(), progress))
            if any(one["removed"] is None for one in said):
                return None
            self._once, self._folders = once, [one["folder"] for one in said]
            folders = [self.work / name for name in self._folders]
            read_tables(sql, first_look.TABLES, folders)
            if self._everything:
                self._view(sql, notes, folders)
            return sum(int(one["removed"]) for one in said)

    def _view(self, sql: duckdb.DuckDBPyConnection, notes: Notes, folders: list[Path]) -> None:
        """Make the view `ops` of all operations."""
        if self._once:
            read_tables(sql, [collectives.ONCE], folders, "view")
            sql.execute(f"create or replace view ops as from {collectives.ONCE}")
        else:
            names = [name for parts in notes.parts.values() for name in parts]
            sql.execute(f"create or replace view lines as from {parquet(names)}")
            first_look.view_operations(sql)

    def look_again(
        self, sql: duckdb.DuckDBPyConnection, question: Question, progress: Progress | None
    ) -> None:
        """Look at all shares for the second time.

        Raises:
            InspectorError: `work` cannot be used.
        """
        bursts = question.bursts
        plan = {
            "items": len(self._parts), "parts": self._parts, "once": self._once,
            "folders": self._folders, "needs": _NEEDS, "window_s": question.window_s,
            "bursts": [bursts.length_bits, bursts.period_bits] if bursts else None,
        }  # fmt: skip
        with self._told():
            (self.work / _NEEDS).mkdir(mode=0o700)
            write_tables(sql, second_look.NEEDS, self.work / _NEEDS)
            said = self._do(
                _Round(task.LOOK_AGAIN, plan, "share", "looked at again", self._sizes(), progress)
            )
            read_tables(sql, second_look.TABLES, [self.work / one["folder"] for one in said])

    def _sizes(self) -> list[int]:
        return [1] * len(self._parts)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Name the shared directory in errors."""
        try:
            yield
        except (OSError, ValueError, duckdb.Error) as err:
            raise InspectorError(f"--slurm: {self.work}: {reason_of(err)}") from err

    def _do(self, round_: _Round) -> list[Any]:
        """Do a round; return the notes of its items."""
        task.put(task.plan_path(self.work, round_.name), round_.plan)
        for step in range(_STEPS_MAX):
            if left := _missing(self.work, round_):
                self._run_step(round_, min(self.tasks, len(left)), f"{round_.name}.step{step}")
        for at in _missing(self.work, round_):
            self.say(f"{round_.item} {at + 1} of {round_.items} is {round_.done} here")
            task.do_item(self.work, round_.name, round_.plan, at)
        round_.show([])
        return [task.notes(self.work, round_.name, at) for at in range(round_.items)]

    def _run_step(self, round_: _Round, tasks: int, step_name: str) -> None:
        """Run one step to its end; what it could not do is told."""
        words = [
            "srun", f"--ntasks={tasks}", "--kill-on-bad-exit=0", "--no-kill", "--input=none",
            "--job-name=nccl-inspector-analyze",
            *words_to_run(
                sys.executable, task.__name__, [str(self.work), round_.name, step_name], sys.path
            ),
        ]  # fmt: skip
        env = {**os.environ, "SLURM_NCCL_INSPECTOR": "off"}  # there is nothing to measure
        # On standard error, where a site's TaskProlog may print: the report is on the other.
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, env=env) as step:
            try:
                while step.poll() is None:
                    time.sleep(_LOOK_S)
                    if round_.progress:
                        round_.show(_missing(self.work, round_))
            except BaseException:
                _end(step)
                raise
        _look_anew(self.work)
        if left_over := len(_missing(self.work, round_)):
            self.say(
                f"{left_over} of {number(round_.items, round_.item)} not {round_.done} by the "
                f"step's {number(tasks, 'task')} (srun: exit status {step.returncode})"
            )


def _end(step: subprocess.Popen[bytes]) -> None:
    """End an srun, which ends its tasks; they write in a directory that is about to go."""
    step.terminate()
    try:
        step.wait(_END_S)
    except subprocess.TimeoutExpired:
        step.kill()
        step.wait()


def _check_shared(shared: Path) -> None:
    """Refuse a directory in which somebody else may put another one in the place of ours.

    Raises:
        InspectorError: it is one, or is not there.
    """
    try:
        found = shared.stat()
    except OSError as err:
        raise InspectorError(f"--shared: {shared}: {err.strerror}") from err
    others = stat.S_IWGRP | stat.S_IWOTH if os.geteuid() == 0 else stat.S_IWOTH
    is_ours = found.st_uid in (0, os.geteuid()) and not found.st_mode & others
    if not is_ours and not found.st_mode & stat.S_ISVTX:
        raise InspectorError(
            f"--shared: {shared}: others can rename what is in it; take a directory of your own"
        )


@contextmanager
def slurm_tasks(tasks: int, shared: Path, say: Callable[[str], None]) -> Iterator[SlurmTasks]:
    """Give workers with a new directory below `shared`, which is removed at the end.

    Raises:
        InspectorError: it cannot be made, or would not be safe there.
    """
    _check_shared(shared)
    work = shared.absolute() / f".nccl-inspector-analyze.{secrets.token_hex(4)}"
    try:
        work.mkdir(mode=0o700)
    except OSError as err:
        raise InspectorError(f"--shared: {work.parent}: {err.strerror}") from err
    # scancel and a time limit end in order, too.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield SlurmTasks(tasks, work, say)
    finally:
        signal.signal(signal.SIGTERM, before)
        with suppress(OSError):  # a task that goes on for a moment may write once more
            shutil.rmtree(work)
        if work.exists():
            time.sleep(_LOOK_S)
            shutil.rmtree(work, ignore_errors=True)
        if work.exists():
            say(f"{work}: cannot be removed")
