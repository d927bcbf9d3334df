# SPDX-License-Identifier: Apache-2.0
"""What launchers and collectors put before a line, or into it, and whose line that says it is.

`logs` and `probe --read` read lines through this one module.

    12: text                                 srun --label: the task
    [1,12]<stdout>:text                      mpirun --tag-output: the rank
    [prterun-n1-4711@1,12]<stdout>: text     Open MPI 5
    Fri Nov 27 10:00:01 2026<stdout>:text    mpirun --timestamp-output
    [12]text, [12] text                      MPICH's and Intel's mpiexec: the rank
    [rank12]: text, [default4]:text          torchrun: the rank; the worker on its node
    (Worker pid=73, ip=10.1.0.2) text        Ray, vLLM; some have rank=12, too
    [pod/worker-0/pytorch] text              kubectl logs --prefix
    2026-11-27T10:00:39.123Z stdout F text   kubectl logs --timestamps, CRI
    Nov 27 10:00:01 n1 train[73]: text       the journal
    [2026-11-27 10:00:39,123] [INFO] text    Python's logging
    n1: text, worker-0: text, > text         pdsh, DeepSpeed, quoted mail
    [n1:1]: text, [trainer0|0]: text         the worker on its host; TorchX: role, replica, worker
    [0604/1024][2026-11-27 10:00:39,1] text  a rank, and how many there are
    ERROR 10-22 12:00:00 [core.py:71] text   vLLM
"""

import re
from dataclasses import dataclass

_PARTS_MAX = 8
# Python takes these apart from the left; each must eat something.
_PART = re.compile(
    rb"[ \t]{0,8}(?:"
    rb"(?P<task>\d{1,7}):(?: |(?=[#\s]))"
    rb"|\[\d{1,7},(?P<mpi>\d{1,7})\]<std(?:out|err|diag)>: ?"
    rb"|\[(?:prterun|prte)[^\]\s]{0,128}?,(?P<prte>\d{1,7})\]<std(?:out|err)>: ?"
    rb"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: \d{4})?"
    rb"(?:\[\d{1,7},(?P<late>\d{1,7})\])?<std(?:out|err)>: ?"
    rb"|\[rank(?P<rank>\d{1,7})\]: ?"
    rb"|\[default\d{1,4}\]: ?"
    rb"|\[(?P<worker>[A-Za-z][\w.-]{0,63}[:|]\d{1,4})\]: ?"
    rb"|\[(?P<of>\d{1,7})/\d{1,7}\](?=\[)"
    rb"|(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d "
    rb"(?:\[[\w./-]{1,96}:\d{1,6}\]|[\w./-]{1,96}:\d{1,6}\]) ?"
    rb"|\[(?P<hydra>\d{1,7})\](?!:) ?"
    rb"|\((?=[^()]{0,128}\bpid=)(?:[^()]{0,96}?\brank=(?P<ray>\d{1,7})\b)?[^()]{0,160}\) ?"
    rb"|\[pod/[^\]\s]{1,253}\] ?"
    rb"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?\]?"
    rb"(?: std(?:out|err) [FP])? ?"
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,64} [\w./-]{1,64}(?:\[\d{1,10}\])?: "
    rb"|\[(?:INFO|WARN(?:ING)?|ERROR|DEBUG)\] "
    rb"|> ?|\| ?"
    rb")"
)
_HOST = re.compile(rb"[ \t]{0,8}(?P<host>\[?[A-Za-z0-9][\w.-]{0,63}\]?): ")
_BRACKET = re.compile(rb"[\[<(]")
_DIGITS = re.compile(rb"\d{1,20}")
_TORCH_RANK = re.compile(rb"\[rank(\d{1,7})\]: ?")
_FAR_BYTES = 160
_HOSTS_MAX = 3
_RANKS = "mpi", "prte", "late", "rank", "hydra", "ray", "of"
_PID = re.compile(rb"\bpid=(\d{1,10})\b")


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before a line's own text.

    `label` is a number of a task or rank; `is_rank`: it is a rank of the job. `pid`: of the writer.
    `end`: where the text begins. `gpu`: of the writer, on a node that is not told. `worker`: what
    else the launcher calls it, empty if nothing.
    """

    label: int | None = None
    is_rank: bool = False
    pid: int | None = None
    end: int = 0
    gpu: int | None = None
    worker: str = ""


def read_prefix(line: bytes, *, is_torn: bool = False) -> Prefix:
    """Return what stands before a line's text; a rank counts before a task.

    `is_torn`: the process was torn off a line of NCCL's. Then a number in brackets right before the
    text is that of a GPU, and not that of a rank.
    """
    label: int | None = None
    is_rank = False
    pid: int | None = None
    end = 0
    name: str | None = None
    before: tuple[int | None, bool] = None, False
    match_gpu: bytes | None = None
    worker = b""
    for _ in range(_PARTS_MAX):
        match = _PART.match(line, end)
        if match is None or match.end() == end:
            break
        end = match.end()
        name, before, match_gpu = match.lastgroup, (label, is_rank), match["hydra"]
        if name in _RANKS:
            if not is_rank or name == "rank":
                label, is_rank = int(match[name]), True
        elif name == "task" and label is None:
            label = int(match[name])
        worker = match["worker"] or worker
        if (of_ray := _PID.search(match[0])) is not None:
            pid = int(of_ray[1])
    gpu: int | None = None
    if is_torn and name == "hydra" and match_gpu:
        label, is_rank = before
        gpu = int(match_gpu)
    if not is_rank:
        # Behind whatever else: torchrun's mark is that of PyTorch itself.
        match = _TORCH_RANK.search(line, end, end + _FAR_BYTES)
        if match is not None:
            label, is_rank, end = int(match[1]), True, match.end()
    return Prefix(label, is_rank, pid, end, gpu, worker.decode("ascii", "replace"))


def without_prefix(line: bytes) -> bytes:
    """Return a line of a table without what a launcher put before it, and into it again.

    Launchers that mark each write do so in the middle of a line, too, if it was written in parts.
    """
    end = read_prefix(line).end
    if not end:
        return line
    mark = line[:end].strip()
    rest = line[end:]
    if not _BRACKET.search(mark):
        return rest
    inner = re.compile(rb"\d{1,20}".join(map(re.escape, _DIGITS.split(mark))))
    return inner.sub(b" ", rest)


def own_text(line: bytes) -> int:
    """Return where a line's own text begins, behind names of hosts as well.

    What looks like one may be an exception's name; that stays.
    """
    end = read_prefix(line).end
    for _ in range(_HOSTS_MAX):
        match = _HOST.match(line, end)
        if match is None or match["host"].endswith((b"Error", b"Exception", b"Failed")):
            break
        end = match.end()
    return end


def without_host(line: bytes) -> bytes:
    """Return a line without the name of a host that pdsh or the like put before it."""
    match = _HOST.match(line)
    return line[match.end() :] if match else line
