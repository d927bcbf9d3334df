# SPDX-License-Identifier: Apache-2.0
"""Read a large capture with the tasks of a Slurm step, which share a directory.

The files are divided into batches, as for one process. A task takes the next batch that nobody has
taken, makes Parquet files of it, and puts its notes beside them last. What a task that died had
taken is left without notes, and is read again: first by another step, then here.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nccl_inspector.capture.capture_files import CaptureFile
from nccl_inspector.capture.engine import Progress
from nccl_inspector.capture.reader import Notes, Reader, batches, connect
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.wording import number
from nccl_inspector.system.own_code import words_to_run

_PLAN = "plan.json"
_STEPS_MAX = 2
_LOOK_S = 0.5
# A batch is read by one task; with fewer of them than tasks some would have nothing to do.
_BATCHES_PER_TASK = 4


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be read, for all tasks."""

    directory: str
    everything: bool
    files: list[CaptureFile]
    batches: list[list[int]]


def _write(path: Path, what: object) -> None:
    """Write a file that is whole once it is there."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    beside.write_text(json.dumps(what))
    beside.rename(path)


def _read_plan(work: Path) -> _Plan:
    said = json.loads((work / _PLAN).read_text())
    files = [CaptureFile(**one) for one in said["files"]]
    return _Plan(said["directory"], said["everything"], files, said["batches"])


def _read_notes(work: Path, at: int) -> Notes | None:
    try:
        said = json.loads((work / f"{at}.json").read_text())
    except FileNotFoundError:
        return None
    notes = Notes([str(work / name) for name in said["parts"]])
    notes.refused.update(said["refused"])
    notes.unknown.update(said["unknown"])
    notes.metadata = said["metadata"]
    return notes


def _claimed(work: Path, attempt: str, at: int) -> bool:
    """Take a batch for this process; False: another one has it."""
    try:
        os.close(os.open(work / f"{attempt}.{at}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _read_batch(plan: _Plan, work: Path, at: int) -> None:
    """Read one batch, and put its notes there last."""
    mine = work / f".{at}.{secrets.token_hex(4)}"
    mine.mkdir(mode=0o700)
    prefix = f"{mine.name[1:]}-"
    sql = connect(mine)
    try:
        reader = Reader(sql, Path(plan.directory), work, plan.everything, prefix)
        reader.read(plan.files, plan.batches[at])
    finally:
        sql.close()
        shutil.rmtree(mine, ignore_errors=True)
    said = asdict(reader.notes) | {"parts": [Path(one).name for one in reader.notes.parts]}
    _write(work / f"{at}.json", said)


def main(words: Sequence[str]) -> int:
    """Be one task: read batches until none is left. The words are the directory and the step."""
    work, attempt = Path(words[0]), words[1]
    plan = _read_plan(work)
    for at in range(len(plan.batches)):
        if not (work / f"{at}.json").exists() and _claimed(work, attempt, at):
            _read_batch(plan, work, at)
    return 0


def _missing(plan: _Plan, work: Path) -> list[int]:
    there = {name.name for name in work.iterdir()}
    return [at for at in range(len(plan.batches)) if f"{at}.json" not in there]


def _srun(work: Path, tasks: int, attempt: str) -> list[str]:
    return [
        "srun", f"--ntasks={tasks}", "--kill-on-bad-exit=0", "--no-kill", "--input=none",
        "--quiet", "--job-name=nccl-inspector-analyze",
        *words_to_run(sys.executable, __name__, [str(work), attempt]),
    ]  # fmt: skip


def _finer(files: Sequence[CaptureFile], tasks: int) -> list[list[int]]:
    """Divide files into batches; into more than for one process if there would be too few."""
    found = list(batches(files))
    most = max(1, sum(map(len, found)) // (tasks * _BATCHES_PER_TASK))
    return [batch[at : at + most] for batch in found for at in range(0, len(batch), most)]


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
            InspectorError: there is no srun, or `work` cannot be written.
        """
        del folder
        if shutil.which("srun") is None:
            raise InspectorError("--slurm: there is no srun here")
        plan = _Plan(str(directory.absolute()), everything, list(files), _finer(files, self.tasks))
        with suppress(FileExistsError):
            _write(self.work / _PLAN, asdict(plan))
        for attempt in range(_STEPS_MAX):
            left = _missing(plan, self.work)
            if left:
                self._step(plan, min(self.tasks, len(left)), f"step{attempt}", progress)
        for at in _missing(plan, self.work):
            self.say(f"piece {at + 1} of {len(plan.batches)} is read here")
            _read_batch(plan, self.work, at)
        whole = Notes()
        for at in range(len(plan.batches)):
            if (notes := _read_notes(self.work, at)) is not None:
                whole.add(notes)
        return whole

    def _step(self, plan: _Plan, tasks: int, attempt: str, progress: Progress | None) -> None:
        """Run one step to its end; what it could not read is told."""
        sizes = [sum(plan.files[one].size for one in batch) for batch in plan.batches]
        env = {**os.environ, "SLURM_NCCL_INSPECTOR": "off"}  # there is nothing to measure
        words = _srun(self.work, tasks, attempt)
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, env=env) as step:
            try:
                while step.poll() is None:
                    time.sleep(_LOOK_S)
                    if progress:
                        left = set(_missing(plan, self.work))
                        done = sum(size for at, size in enumerate(sizes) if at not in left)
                        progress(done, sum(sizes))
            except BaseException:
                step.terminate()  # srun ends its tasks then
                raise
        if left_over := len(_missing(plan, self.work)):
            self.say(
                f"{number(tasks, 'task')} of a step left {number(left_over, 'piece')} of "
                f"{len(plan.batches)} unread (srun: status {step.returncode})"
            )


@contextmanager
def slurm_reader(tasks: int, shared: Path, say: Callable[[str], None]) -> Iterator[SlurmReader]:
    """Give a reader with a new directory below `shared`, which is removed at the end.

    Raises:
        InspectorError: it cannot be made.
    """
    work = shared.absolute() / f".nccl-inspector-analyze.{secrets.token_hex(4)}"
    try:
        work.mkdir(mode=0o700)
    except OSError as err:
        raise InspectorError(f"--slurm: {work.parent}: {err.strerror}") from err
    try:
        yield SlurmReader(tasks, work, say)
    finally:
        shutil.rmtree(work, ignore_errors=True)
