# SPDX-License-Identifier: Apache-2.0
"""Read and join a large capture with the tasks of Slurm steps, which share a directory.

The tasks do what is in task.py, in three rounds. A round is a step. What tasks that died have left
is done by another step, and after that here.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from nccl_inspector.capture import collectives, first_look, second_look, task
from nccl_inspector.capture.contents import Source
from nccl_inspector.capture.engine import Progress
from nccl_inspector.capture.exchange import read_tables, write_tables
from nccl_inspector.capture.pieces import plan_work
from nccl_inspector.capture.reader import Notes, parquet, reason_of
from nccl_inspector.capture.second_look import Question
from nccl_inspector.capture.shared_work import shared_work
from nccl_inspector.capture.slurm_step import StepWords, is_gone
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import compress
from nccl_inspector.model.wording import number
from nccl_inspector.system.own_code import words_to_run

_STEPS_MAX = 2
_LOOK_S, _END_S = 0.5, 10.0
_NEEDS = "needs"
_IN_VAIN = "--slurm: none of the step's tasks did anything, so nothing is reported"


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
    _unseen: dict[str, set[str]] = field(default_factory=dict)  # by directory, nodes that are told

    def read(self, source: Source, folder: Path, progress: Progress | None) -> Notes:
        """Read all files; `folder` is not used, because it is of this host.

        Raises:
            InspectorError: there is no srun, or `work` cannot be used.
        """
        del folder
        if shutil.which("srun") is None:
            raise InspectorError("--slurm: there is no srun here")
        self._everything, files = source.everything, source.files
        pieces, shares = plan_work(files, self.tasks)
        sizes = [piece.size(files) for piece in pieces]
        plan = {
            "items": len(pieces), "directory": str(source.directory.absolute()),
            "everything": source.everything, "shares": shares,
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
        """Do a round; return the notes of its items.

        Raises:
            InspectorError: the job is gone, or no task of the round did anything.
        """
        task.put(task.plan_path(self.work, round_.name), round_.plan)
        began, found = False, None
        for step in range(_STEPS_MAX):
            if left := _missing(self.work, round_):
                name = f"{round_.name}.step{step}"
                found = self._run_step(round_, min(self.tasks, len(left)), name)
                began |= any(self.work.glob(f"{name}.*{task.TAKEN}"))
                if _missing(self.work, round_):
                    self._end_if_in_vain(found, began)
        if (left := _missing(self.work, round_)) and not began:
            raise InspectorError(_IN_VAIN)
        for at in left:
            if found is not None and not found.is_own_job:
                self._end_if_in_vain(found, began)
            self.say(f"{round_.item} {at + 1} of {round_.items} is {round_.done} here")
            task.do_item(self.work, round_.name, round_.plan, at)
        round_.show([])
        return [task.notes(self.work, round_.name, at) for at in range(round_.items)]

    def _end_if_in_vain(self, found: StepWords, began: bool) -> None:
        """End this command if no further step can do anything.

        What tasks that died have left is done by others, but not what a job leaves that is gone:
        somebody has cancelled it, or its time is up.
        """
        if is_gone(found):
            raise InspectorError(f"--slurm: job {found.job_id} has ended before the work was done")
        # Outside a job a further step is a new job, which waits in the queue like this one.
        if not began and (found.unseen or found.is_own_job):
            raise InspectorError(_IN_VAIN)

    def _run_step(self, round_: _Round, tasks: int, step_name: str) -> StepWords:
        """Run one step to its end; what it could not do is told."""
        words = [
            "srun", f"--ntasks={tasks}", "--kill-on-bad-exit=0", "--no-kill", "--input=none",
            "--job-name=nccl-inspector-analyze",
            *words_to_run(
                sys.executable, task.__name__, [str(self.work), round_.name, step_name], sys.path
            ),
        ]  # fmt: skip
        env = {**os.environ, "SLURM_NCCL_INSPECTOR": "off"}  # there is nothing to measure
        found = StepWords()
        try:
            step = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=found.writing, env=env)
        finally:
            found.begin()
        with step:
            try:
                while step.poll() is None:
                    time.sleep(_LOOK_S)
                    if round_.progress:
                        round_.show(_missing(self.work, round_))
            except BaseException:
                _end(step)
                raise
            found.wait(_END_S)
        _look_anew(self.work)
        for path, nodes in dict(found.unseen).items():
            self._tell_unseen(path, nodes)
        if left_over := len(_missing(self.work, round_)):
            self.say(
                f"{left_over} of {number(round_.items, round_.item)} not {round_.done} by the "
                f"step's {number(tasks, 'task')} (srun: exit status {step.returncode})"
            )
        return found

    def _tell_unseen(self, path: str, nodes: set[str]) -> None:
        """Say which nodes do not see a directory, of each node once."""
        told = self._unseen.setdefault(path, set())
        if fresh := nodes - told:
            told |= fresh
            verb = "does" if len(fresh) == 1 else "do"
            self.say(f"{compress(fresh)} {verb} not see {path}")


def _end(step: subprocess.Popen[bytes]) -> None:
    """End an srun, which ends its tasks; they write in a directory that is about to go."""
    step.terminate()
    try:
        step.wait(_END_S)
    except subprocess.TimeoutExpired:
        step.kill()
        step.wait()


def _interrupt_by(number: signal.Signals) -> Any:
    """Let a signal end this process as Ctrl-C does; return how it was handled before."""
    before = signal.getsignal(number)
    if before != signal.SIG_IGN:  # as nohup starts it
        signal.signal(number, signal.default_int_handler)
    return before


@contextmanager
def slurm_tasks(tasks: int, shared: Path, say: Callable[[str], None]) -> Iterator[SlurmTasks]:
    """Give workers with a new directory below `shared`, which is removed at the end.

    Raises:
        InspectorError: it cannot be made, or would not be safe there.
    """
    # scancel, a time limit and a terminal that is closed end in order, too.
    before = {number: _interrupt_by(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with shared_work(shared, say) as work:
            yield SlurmTasks(tasks, work, say)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
