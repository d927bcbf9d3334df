# SPDX-License-Identifier: Apache-2.0
"""What launchers wrote into a job's output about the ends of its tasks.

Users can write such lines, too. So they accuse nobody and change no verdict: they say how a process
ended of which the boxes say that it died, and stand in a finding of their own, as information.
nccl_log/launcher_lines.py reads them.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from nccl_inspector.errors import InspectorError
from nccl_inspector.model import rules
from nccl_inspector.model.card import INFO, LOW, Finding
from nccl_inspector.model.exit_words import OUT_OF_MEMORY, SIGKILL, SIGTERM, signal_of
from nccl_inspector.model.hostlist import expand
from nccl_inspector.model.process import COMM_FOLDED, Process
from nccl_inspector.model.wording import cut_list, number
from nccl_inspector.nccl_log.launcher_lines import SRUN, LauncherEnd, LauncherLines
from nccl_inspector.slurm.values import id_set

_SHOWN = 4


def _short(host: str) -> str:
    return host.partition(".")[0]


def _ranks(process: Process) -> set[int]:
    """Return the rank in the largest communicators: the application's own."""
    comms = [one for one in process.comms if one.state != COMM_FOLDED]
    most = max((one.nranks for one in comms), default=0)
    return {one.rank for one in comms if one.nranks == most}


def _hosts(one: LauncherEnd) -> set[str]:
    try:
        return {_short(host) for host in expand(one.hosts)} if one.hosts else set()
    except InspectorError:
        return {_short(one.hosts)}


def _of_line(one: LauncherEnd, placed: Sequence[tuple[str, Process]]) -> Iterator[int]:
    """Yield the places of the processes that a line is about, as far as that is certain."""
    hosts, tasks = _hosts(one), set(id_set(one.tasks))
    here = [at for at, (node, _) in enumerate(placed) if not hosts or _short(node) in hosts]
    if one.source != SRUN:
        by_pid = [at for at in here if one.pid and placed[at][1].facts.pid == one.pid]
        mine = by_pid or [at for at in here if _ranks(placed[at][1]) & tasks]
        yield from mine if len(mine) == 1 else ()
        return
    # In a task with several processes, and with one task number in two steps, nothing is certain.
    of_task = Counter(placed[at][1].facts.procid for at in here)
    for at in here:
        procid = placed[at][1].facts.procid
        if procid in tasks and of_task[procid] == 1:
            yield at


def how_they_ended(
    lines: LauncherLines | None, placed: Sequence[tuple[str, Process]]
) -> dict[int, LauncherEnd]:
    """Return how processes ended, by their places, as launchers wrote it.

    What torchrun and mpirun say of a process counts before what srun says of its task. Of several
    lines the first counts.
    """
    found: dict[int, LauncherEnd] = {}
    for of_launcher in (True, False):
        for one in lines.ends if lines else ():
            if (one.source != SRUN) == of_launcher:
                for at in _of_line(one, placed):
                    found.setdefault(at, one)
    return found


def lacked_memory(
    one: LauncherEnd, lines: LauncherLines, job_ids: Collection[int], step: int | None
) -> bool:
    """Tell whether a process was killed for lack of memory: its line says so, or its step's."""
    steps = {f"{job_id}.{_named(step)}" for job_id in job_ids}
    of = signal_of(one.code, one.signal)
    return of == OUT_OF_MEMORY or (of == SIGKILL and not steps.isdisjoint(lines.out_of_memory))


def killed_words(
    one: LauncherEnd, lines: LauncherLines, job_ids: Collection[int], step: int | None
) -> str:
    """Return how a process was killed or failed, for a title; empty: its launcher ended it.

    A signal that an out-of-memory kill of its step explains is told as one.
    """
    of = signal_of(one.code, one.signal)
    if one.by_launcher or of == SIGTERM:
        return ""
    if of == SIGKILL and lacked_memory(one, lines, job_ids, step):
        return f"SIGKILL; Slurm counted kills for lack of memory in step {_named(step)}"
    return one.words


def _named(step: int | None) -> str:
    return "batch" if step is None else str(step)


# As a finding.


def _who(one: LauncherEnd) -> str:
    if not one.tasks:
        who = f"process {one.pid}" if one.pid else "a process"
        return f"{who}{f' on {one.hosts}' if one.hosts else ''}"
    word = "task" if one.source == SRUN else "rank"
    many = "s" if any(sign in one.tasks for sign in ",-") else ""
    on = f" on {one.hosts}" if one.hosts else ""
    return f"{word}{many} {one.tasks}{on}"


def _after(one: LauncherEnd) -> str:
    if one.source == SRUN:
        return " (as Slurm ended the step)"
    return f" (as {one.source} ended it)"


def tell_launchers(lines: LauncherLines | None, *, requeued: bool = False) -> list[Finding]:
    """Return the finding about what launchers wrote; none: they wrote nothing of an end.

    `requeued`: there was an attempt before, whose lines may be in the same output.
    """
    if lines is None or not (lines.ends or lines.out_of_memory or lines.notes):
        return []
    told = [
        f"{_who(one)}: {one.words}{_after(one) if one.by_launcher else ''}" for one in lines.ends
    ]
    told += [f"step {step}: processes killed for lack of memory" for step in lines.out_of_memory]
    quotes = [*(one.line for one in lines.ends[:_SHOWN]), *lines.notes][:_SHOWN]
    by = ", ".join(dict.fromkeys(one.source for one in lines.ends)) or "Slurm"
    title = cut_list(told, _SHOWN) or "why it ended the job"
    earlier = " Some may be of an earlier attempt of the job." if requeued else ""
    count = len(lines.ends) + len(lines.out_of_memory) + len(lines.notes)
    detail = (
        f"{number(count, 'line')} of the job's output{', such as ' if quotes else ''}"
        f"{', '.join(f'`{one}`' for one in quotes)}. They are in the order of the output, and a "
        f"task that ended after the first one may only have been told to end.{earlier}"
    )
    return [Finding(rules.LAUNCHER.id, INFO, LOW, f"{by} wrote: {title}", detail)]


def first_end(lines: LauncherLines | None) -> str:
    """Return what a launcher wrote first of a task's end, for a verdict; empty: nothing."""
    first = next((one for one in lines.ends if not one.by_launcher), None) if lines else None
    return f"{first.source} wrote first of {_who(first)}: {first.words}" if first else ""
