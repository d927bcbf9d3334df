# SPDX-License-Identifier: Apache-2.0
"""Read a large capture with the tasks of a Slurm step, which share a directory.

The files are divided into pieces; large ones that are not compressed are cut between two lines, and
read from where they are. A task takes the next piece that nobody has taken, makes Parquet
files of it, and puts its notes beside them last. What a task that died had taken is left without
notes, and is read again: first by another step, then here.
"""

import json
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
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb

from nccl_inspector.capture.capture_files import CaptureFile
from nccl_inspector.capture.engine import Progress
from nccl_inspector.capture.file_parts import PART_BYTES_MIN, Part, parts_of
from nccl_inspector.capture.reader import Notes, Reader, batches, connect
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.wording import number
from nccl_inspector.system.atomic import replace_file
from nccl_inspector.system.own_code import words_to_run

_PLAN = "plan.json"
_STEPS_MAX = 2
_LOOK_S, _END_S = 0.5, 10.0
_PIECES_PER_TASK = 4  # so that no task waits long for the last one


@dataclass(frozen=True, slots=True)
class _Piece:
    """Files that are read together, or a part of one."""

    files: list[int]
    part: Part | None = None

    def size(self, files: Sequence[CaptureFile]) -> int:
        """Return how many bytes it has."""
        if self.part is not None:
            return self.part.end - self.part.begin
        return sum(files[one].size for one in self.files)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be read, for all tasks."""

    directory: str
    everything: bool
    files: list[CaptureFile]
    pieces: list[_Piece]


def _write(path: Path, what: object) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        replace_file(folder, path.name, json.dumps(what).encode(), 0o600)
    finally:
        os.close(folder)


def _read_plan(work: Path) -> _Plan:
    said = json.loads((work / _PLAN).read_text())
    files = [CaptureFile(**one) for one in said["files"]]
    pieces = [
        _Piece(one["files"], Part(**one["part"]) if one["part"] else None) for one in said["pieces"]
    ]
    return _Plan(said["directory"], said["everything"], files, pieces)


def _read_notes(work: Path, at: int) -> Notes:
    said = json.loads((work / f"{at}.json").read_text())
    notes = Notes([str(work / name) for name in said["parts"]], metadata=said["metadata"])
    notes.refused.update(said["refused"])
    notes.unknown.update(said["unknown"])
    return notes


def _is_mine(work: Path, step: str, at: int) -> bool:
    """Take a piece for this process; False: another one has it."""
    try:
        os.close(os.open(work / f"{step}.{at}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _read_piece(plan: _Plan, work: Path, at: int) -> None:
    """Read one piece, and put its notes there last."""
    own = f"{at}-{secrets.token_hex(4)}"
    spilled = work / f"{own}.spilled"
    spilled.mkdir(mode=0o700)
    sql = connect(spilled)
    try:
        reader = Reader(sql, Path(plan.directory), work, plan.everything, f"{own}-")
        piece = plan.pieces[at]
        if piece.part is None:
            reader.read(plan.files, piece.files)
        else:
            reader.read_part(plan.files[piece.files[0]], piece.files[0], piece.part)
    finally:
        sql.close()
        shutil.rmtree(spilled, ignore_errors=True)
    notes = reader.notes
    said = {
        "parts": [Path(one).name for one in notes.parts],
        "refused": dict(notes.refused),
        "unknown": dict(notes.unknown),
        "metadata": notes.metadata,
    }
    _write(work / f"{at}.json", said)


def _first_piece(pieces: int) -> int:
    """Return where this task begins, so that tasks do not all ask for the same pieces."""
    try:
        return int(os.environ["SLURM_PROCID"]) * pieces // int(os.environ["SLURM_NTASKS"]) % pieces
    except (KeyError, ValueError, ZeroDivisionError):
        return 0


def main(words: Sequence[str]) -> int:
    """Be one task: read pieces until none is left. The words are the directory and the step."""
    work, step = Path(words[0]), words[1]
    try:
        plan = _read_plan(work)
        first = _first_piece(len(plan.pieces))
        for at in (*range(first, len(plan.pieces)), *range(first)):
            if not (work / f"{at}.json").exists() and _is_mine(work, step, at):
                _read_piece(plan, work, at)
    except (OSError, ValueError, duckdb.Error) as err:
        print(f"nccl-inspector: {work}: {str(err).splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def _missing(plan: _Plan, work: Path) -> list[int]:
    there = {path.name for path in work.iterdir()}
    return [at for at in range(len(plan.pieces)) if f"{at}.json" not in there]


def _look_anew(work: Path) -> None:
    """Change the directory: NFS would answer with what it knew some seconds ago."""
    (work / "looked").touch()
    (work / "looked").unlink()


def _finer(files: Sequence[CaptureFile], tasks: int) -> list[_Piece]:
    """Divide files into pieces; into more than for one process if there would be too few."""
    wanted = tasks * _PIECES_PER_TASK
    most_bytes = max(PART_BYTES_MIN, sum(one.size for one in files) // wanted)
    cut = {at for at, one in enumerate(files) if not one.gzipped and one.size >= 2 * most_bytes}
    found = [
        _Piece([at], part) for at in sorted(cut) for part in parts_of(files[at].size, most_bytes)
    ]
    most = max(1, (len(files) - len(cut)) // wanted)
    for batch in batches(files):
        whole = [at for at in batch if at not in cut]
        found += [_Piece(whole[at : at + most]) for at in range(0, len(whole), most)]
    return found


@dataclass(frozen=True, slots=True)
class SlurmReader:
    """Reads files as engine.read_here() does, with the tasks of a step.

    `work` is a directory of ours that all nodes see; `say` is told of what went wrong.
    """

    tasks: int
    work: Path
    say: Callable[[str], None]

    def __call__(
        self,
        directory: Path,
        files: Sequence[CaptureFile],
        folder: Path,
        everything: bool,
        progress: Progress | None,
    ) -> Notes:
        """Read them; `folder` is not used, because it is of this host.

        Raises:
            InspectorError: there is no srun, or `work` cannot be used.
        """
        del folder
        if shutil.which("srun") is None:
            raise InspectorError("--slurm: there is no srun here")
        plan = _Plan(str(directory.absolute()), everything, list(files), _finer(files, self.tasks))
        try:
            return self._read(plan, progress)
        except (OSError, ValueError, duckdb.Error) as err:
            raise InspectorError(f"--slurm: {self.work}: {str(err).splitlines()[0]}") from err

    def _read(self, plan: _Plan, progress: Progress | None) -> Notes:
        _write(self.work / _PLAN, asdict(plan))
        for step in range(_STEPS_MAX):
            if left := _missing(plan, self.work):
                self._run_step(plan, min(self.tasks, len(left)), f"step{step}", progress)
        for at in _missing(plan, self.work):
            self.say(f"piece {at + 1} of {len(plan.pieces)} is read here")
            _read_piece(plan, self.work, at)
        whole = Notes()
        for at in range(len(plan.pieces)):
            whole.add(_read_notes(self.work, at))
        return whole

    def _run_step(self, plan: _Plan, tasks: int, name: str, progress: Progress | None) -> None:
        """Run one step to its end; what it could not read is told."""
        sizes = [piece.size(plan.files) for piece in plan.pieces]
        words = [
            "srun", f"--ntasks={tasks}", "--kill-on-bad-exit=0", "--no-kill", "--input=none",
            "--job-name=nccl-inspector-analyze",
            *words_to_run(sys.executable, __name__, [str(self.work), name], sys.path),
        ]  # fmt: skip
        env = {**os.environ, "SLURM_NCCL_INSPECTOR": "off"}  # there is nothing to measure
        # On standard error, where a site's TaskProlog may print: the report is on the other.
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, env=env) as step:
            try:
                while step.poll() is None:
                    time.sleep(_LOOK_S)
                    if progress:
                        left = set(_missing(plan, self.work))
                        done = sum(size for at, size in enumerate(sizes) if at not in left)
                        progress(done, sum(sizes))
            except BaseException:
                _end(step)
                raise
        _look_anew(self.work)
        if left_over := len(_missing(plan, self.work)):
            self.say(
                f"{left_over} of {number(len(plan.pieces), 'piece')} not read by the step's "
                f"{number(tasks, 'task')} (srun: exit status {step.returncode})"
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
def slurm_reader(tasks: int, shared: Path, say: Callable[[str], None]) -> Iterator[SlurmReader]:
    """Give a reader with a new directory below `shared`, which is removed at the end.

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
        yield SlurmReader(tasks, work, say)
    finally:
        signal.signal(signal.SIGTERM, before)
        with suppress(OSError):  # a task that goes on for a moment may write once more
            shutil.rmtree(work)
        if work.exists():
            time.sleep(_LOOK_S)
            shutil.rmtree(work, ignore_errors=True)
        if work.exists():
            say(f"{work}: cannot be removed")
