# SPDX-License-Identifier: Apache-2.0
"""Which task of a job ended first, if slurmstepd's record of the ends proves that it failed.

A process that is killed while all ranks are in the same operation looks, in the boxes, like all the
others: each was in it, and none went on. slurmstepd saw it end, with its signal or exit code,
before srun had the others killed. Users cannot write this record (spank/task_end.h).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from nccl_inspector.analysis.clocks import Clock
from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hang.suspect_age import GIVEN_UP_S
from nccl_inspector.model.exit_words import OF_ITS_OWN, SIGABRT, SIGKILL, SIGTERM, TIMEOUT
from nccl_inspector.model.process import EXITED, KILLED, NS_PER_S, Process
from nccl_inspector.model.task_end import TaskEnd
from nccl_inspector.summary.codec import NodeSummary

# A box beats once a second: who beat this long before an end, or later, lived then.
ALIVE_NS = 1.5e9
# Slurm's end of a job is in whole seconds, and of the controller's clock.
SLURM_END_NS = 1e9
# How much earlier, by the clocks of two nodes, an end must be than another one that may be its
# consequence. Slurm needs three messages to end a step; a rank needs longer to notice that a peer
# is gone, and to give up. Time services keep nodes closer together than that.
TOLD_NS, GAVE_UP_NS = 5e6, 100e6


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """The end of a task, in common time; `who`: the place of its only measured process."""

    node: str
    end: TaskEnd
    who: int | None  # None: it has none, or several

    @property
    def own_signal(self) -> int | None:
        """The signal, if the task got it for what it did itself, or for its memory."""
        return self.end.signal if self.end.signal in OF_ITS_OWN else None

    @property
    def by_itself(self) -> bool:
        """Whether Slurm cannot have ended it: it sends SIGTERM and SIGKILL."""
        return self.end.signal not in (SIGTERM, SIGKILL)


@dataclass(frozen=True, slots=True)
class FirstEnd:
    """The task that ended first: the place of its process, its end, and how much earlier that was.

    `lead_s`: seconds before the next task that did not end well; None: all others ended well.
    """

    who: int
    end: TaskEnd
    lead_s: float | None


def wrong_clocks(clocks: Mapping[str, Clock]) -> dict[str, Clock]:
    """Return the clocks of which operations prove that they are not as the others.

    Of the rest the nodes' own times are used: a time service does better than the boxes' estimate.
    """
    if not clocks:
        return {}
    usual_ns = median(one.error_ns for one in clocks.values())
    return {
        node: one for node, one in clocks.items() if abs(one.ahead_ns) > one.error_ns + usual_ns
    }


def _ahead_ns(node: str, wrong: Mapping[str, Clock]) -> int:
    return round(wrong[node].ahead_ns) if node in wrong else 0


def seen_ends(summaries: Sequence[NodeSummary], wrong: Mapping[str, Clock]) -> Iterator[SeenEnd]:
    """Yield what slurmstepd saw; places are those among the processes of all summaries.

    `wrong`: the clocks that are wrong (`wrong_clocks`), by node.
    """
    begin = 0
    for summary in summaries:
        tasks = [(one.facts.step, one.facts.procid) for one in summary.processes]
        count, at = Counter(tasks), {task: begin + place for place, task in enumerate(tasks)}
        begin += len(tasks)
        node = summary.head.node
        for end in summary.head.task_ends:
            task = end.step, end.task
            who = at[task] if count[task] == 1 else None
            yield SeenEnd(node, replace(end, at_ns=end.at_ns - _ahead_ns(node, wrong)), who)


def find_failed_node(
    summaries: Sequence[NodeSummary], nodes_missing: Sequence[str], ending: Ending
) -> str:
    """Return the node that failed and so ended the job; empty: none did, or it is not certain.

    Slurm 22.05 does not say which. slurmstepd records how the tasks end that Slurm then kills; only
    of the node that failed it records none, or the whole node left nothing behind.
    """
    if ending.state != "NODE_FAIL":
        return ""
    heads = [one.head for one in summaries]
    if ending.failed_node:
        known = {*(one.node for one in heads), *nodes_missing}
        return ending.failed_node if ending.failed_node in known else ""
    silent = {*nodes_missing, *(one.node for one in heads if not one.task_ends)}
    is_whole = any(one.task_ends for one in heads)
    return silent.pop() if len(silent) == 1 and (is_whole or nodes_missing) else ""


def find_first_end(
    seen: Sequence[SeenEnd],
    placed: Sequence[tuple[str, Process]],
    wrong: Mapping[str, Clock],
    ending: Ending,
) -> FirstEnd | None:
    """Return the task that failed first; None: that is not certain, or nothing failed.

    `wrong`: as for `seen_ends`. The record must be of all nodes.

    A signal such as SIGSEGV or SIGKILL is nobody else's doing, unless Slurm or a person had begun
    to end the job. An exit code may be: a watchdog ends a process that waited for another one, and
    a broken connection ends those on both sides. So with an exit code it must be the only task that
    ended by itself, and it must not have waited.
    """
    if not seen or not ending.orders_deaths:
        return None
    first, *rest = sorted(seen, key=lambda one: one.end.at_ns)
    if first.who is None or placed[first.who][1].facts.state not in (KILLED, EXITED):
        return None
    at_ns = first.end.at_ns
    if at_ns > ending.until_ns - SLURM_END_NS:
        return None
    if any(one.end.at_ns - at_ns <= _least_lead_ns(first, one, wrong) for one in rest):
        return None
    others = [
        one.facts.beat_ns - _ahead_ns(node, wrong)
        for who, (node, one) in enumerate(placed)
        if who != first.who
    ]
    if 2 * sum(beat_ns > at_ns - ALIVE_NS for beat_ns in others) <= len(others):
        return None  # most had ended before, in order: Slurm ends a step some time after them
    soon = [one for one in rest if one.end.at_ns - at_ns < GIVEN_UP_S * NS_PER_S]
    if not (_died(first, soon) or _gave_error(first, soon, placed[first.who][1])):
        return None
    lead_s = (rest[0].end.at_ns - at_ns) / NS_PER_S if rest else None
    return FirstEnd(first.who, first.end, lead_s)


def _least_lead_ns(first: SeenEnd, other: SeenEnd, wrong: Mapping[str, Clock]) -> float:
    """Return how much earlier one end must be to be certainly no consequence of another one."""
    if first.node == other.node:
        return 0.0
    doubts_ns = [wrong[one.node].error_ns for one in (first, other) if one.node in wrong]
    if doubts_ns:
        return sum(doubts_ns)
    killed = first.end.signal == SIGKILL
    if other.by_itself:
        return GAVE_UP_NS
    if killed and other.end.signal == SIGKILL:
        return GIVEN_UP_S * NS_PER_S
    return 0.0 if killed else TOLD_NS


def _died(first: SeenEnd, soon: Sequence[SeenEnd]) -> bool:
    """Tell whether a signal of its own ended it, and not all of them, as a bug of the program."""
    alike = (one for one in soon if one.own_signal not in (None, SIGKILL))
    return first.own_signal is not None and next(alike, None) is None


def _gave_error(first: SeenEnd, soon: Sequence[SeenEnd], process: Process) -> bool:
    """Tell whether it alone ended by itself, with an error, and had not waited for others."""
    number, code = first.end.signal, first.end.code
    is_error = number == SIGABRT or (number is None and code not in (0, TIMEOUT))
    alone = not any(one.by_itself for one in soon)
    waited_ns = max((one.age_ns for one in process.operations if one.started), default=0)
    return is_error and alone and waited_ns < GIVEN_UP_S * NS_PER_S
