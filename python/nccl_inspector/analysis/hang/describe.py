# SPDX-License-Identifier: Apache-2.0
"""Hangs as findings: who did what last, who waits where and since when, and what to run next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hang.quiet_end import QuietEnd
from nccl_inspector.analysis.hang.suspect_age import GIVEN_UP_S
from nccl_inspector.analysis.next_command import show_journal, show_stack
from nccl_inspector.analysis.places import Places
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    BLOCKED,
    DEAD,
    DEADLOCK,
    DIVERGENT,
    HIGH,
    LOW,
    MEDIUM,
    MISMATCHED,
    NETWORK,
    NOT_MEASURED,
    STOPPED,
    TRANSPORT,
    WARNING,
    Entity,
    Evidence,
    Finding,
    Hang,
    LastCall,
    Period,
)
from nccl_inspector.model.wording import clock, cut_list, elapsed, number, said_entity

PERHAPS = "perhaps hung: "  # before the title of a hang that is not confirmed
_NAMES_SHOWN = 4
_VICTIMS_SHOWN = 1024  # in a finding; the table of hangs has all
_CODE_AT_FAULT = (MISMATCHED, DEADLOCK)  # a look at a node would not help
# For each word of HANG_VERDICTS.
_RULES = {
    DIVERGENT: rules.HANG_DIVERGENT,
    MISMATCHED: rules.HANG_MISMATCHED,
    BLOCKED: rules.HANG_BLOCKED,
    DEAD: rules.HANG_DEAD,
    DEADLOCK: rules.HANG_DEADLOCK,
    NETWORK: rules.HANG_NETWORK,
    TRANSPORT: rules.HANG_TRANSPORT,
    NOT_MEASURED: rules.HANG_NOT_MEASURED,
    STOPPED: rules.STOPPED_FIRST,
}


@dataclass(frozen=True, slots=True)
class HungJob:
    """What is known about a job with a hang; `names` has its communicators' names by id.

    `how_ended`: how processes ended, as Slurm saw it or their launcher wrote it, by name; an empty
    text: Slurm ended them. It may be of some processes only. `first`: the name of the process whose
    task ended first, as Slurm saw it (first_end.py); empty: not certain.
    """

    places: Places
    ending: Ending
    job_id: int
    names: dict[str, str]
    how_ended: Mapping[str, str] = field(default_factory=dict)
    first: str = ""

    def comm(self, comm_id: str) -> str:
        """Return the name of a communicator in the report."""
        return self.names.get(comm_id) or comm_id


def _who(hang: Hang) -> tuple[str, ...]:
    """Return the processes that a finding is about: the roots, else those known not to have come.

    The answer is empty if all have come, or if what holds them up is not known.
    """
    if hang.roots or hang.verdict in (TRANSPORT, NETWORK, BLOCKED, DIVERGENT):
        return hang.roots
    if hang.verdict == NOT_MEASURED and hang.not_measured:
        return hang.not_measured
    return hang.dead or hang.never_issued or hang.mismatched or hang.not_measured


def _operation(hang: Hang, job: HungJob) -> str:
    return f"{hang.func} {hang.op_index} of {job.comm(hang.communicator)}"


def _call(last: LastCall, job: HungJob) -> str:
    """Return `ReduceScatter 300 of dp`."""
    func = f"{last.func} " if last.func else "operation "
    return f"{func}{last.op_index} of {job.comm(last.communicator)}"


def _briefly(hang: Hang, last: LastCall | None, job: HungJob) -> str:
    """Return the operation, in a shorter form if one of its kind has just been named."""
    if last is None or last.communicator != hang.communicator:
        return _operation(hang, job)
    return str(hang.op_index) if last.func == hang.func else f"{hang.func} {hang.op_index}"


def _waiters(hang: Hang) -> int:
    """Return how many processes wait in the operation, without those the finding is about."""
    return len(set(hang.waiting) - set(_who(hang)))


def _waiters_in(hang: Hang, operation: str) -> tuple[int, str]:
    """Return how many processes wait, and where: in other operations if nobody is in this one."""
    count = _waiters(hang)
    return (count, operation) if count else (len(hang.behind), "other operations")


def _others_wait(hang: Hang, operation: str) -> str:
    count, where = _waiters_in(hang, operation)
    if not count:
        return f"nobody is in {operation} yet"
    return f"{count:,} {'other waits' if count == 1 else 'others wait'} in {where}"


def _time(at_s: float | None) -> str:
    return clock(at_s, "%H:%M:%S")


def _until(job: HungJob) -> str:
    """Return how the waiting ended: ` and gave up`, ` until the job was cancelled`."""
    if not job.ending.is_over:
        return " so far"
    if job.ending.has_failed:
        return " and gave up"
    ended = job.ending.ended_words
    return f" until the job {ended}" if ended else " until they ended"


def _waited(hang: Hang, operation: str, job: HungJob) -> str:
    """Return how many ranks waited in an operation, for how long, and until when."""
    count, where = _waiters_in(hang, operation)
    if not count:
        return f"nobody was in {operation} yet"
    ranks = f"{count:,} other {'rank' if count == 1 else 'ranks'}"
    return f"{ranks} waited {elapsed(hang.age_s)} in {where}{_until(job)}"


def _stopped(who: str, hang: Hang, job: HungJob) -> str:
    """Return a text about ranks that did not come to an operation."""
    last = max(hang.last, key=lambda one: one.since_s or 0.0, default=None)
    if last is None or last.since_s is None:
        return f"{who} never called {_operation(hang, job)}; {_waited(hang, 'it', job)}"
    stopped = f"{who} stopped calling NCCL at {_time(last.since_s)}, after {_call(last, job)}"
    return f"{stopped}; {_waited(hang, _briefly(hang, last, job), job)}"


def killed_by(names: Sequence[str], how_ended: Mapping[str, str], ending: Ending) -> str:
    """Return what killed processes, as text; empty: not known.

    What the launcher wrote of these processes counts. If it wrote of others only, or of each
    something else, the job's own code is not of these.
    """
    if not how_ended:
        return ending.killed_by
    told = {how_ended[name] for name in names if name in how_ended}
    return told.pop() if len(told) == 1 else ""


def said_killed(why: str, *, many: bool = False) -> str:
    """Return `was killed (SIGKILL: out of memory, or kill -9)`, or `crashed (exit code 1, ...)`."""
    if why.startswith(("exit code", "SIGABRT")):
        return f"crashed ({why})"
    return f"{'were' if many else 'was'} killed ({why})"


def _crashed(who: str, many: bool, hang: Hang, job: HungJob) -> str:
    """Return a text about ranks that stopped and with which the job failed."""
    last = max(hang.last, key=lambda one: one.since_s or 0.0, default=None)
    why = killed_by(_who(hang), job.how_ended, job.ending)
    did = "died" if hang.verdict == DEAD else "crashed"
    if why:
        did = said_killed(why, many=many)
    if last is None or last.since_s is None:
        return f"{who} {did}; {_others_waited(hang, _operation(hang, job))}"
    mine = last.communicator == hang.communicator
    ahead = "calling " if mine and last.op_index >= hang.op_index else ""
    at = f"{did} at about {_time(last.since_s)}, after {ahead}{_call(last, job)}"
    return f"{who} {at}; {_others_waited(hang, _briefly(hang, last, job))}"


def _others_waited(hang: Hang, operation: str) -> str:
    count = _waiters(hang) or len(hang.behind)
    if not count:
        return f"nobody was in {operation} yet"
    ranks = f"{count:,} other {'rank' if count == 1 else 'ranks'}"
    where = f" in {operation}" if _waiters(hang) else ""
    return f"{ranks} waited for {'it' if len(_who(hang)) == 1 else 'them'}{where}"


def _in_orders(hang: Hang, job: HungJob) -> str:
    """Return a text about processes that used another order: in which operation each is."""
    where = {last.process: f"is in {_call(last, job)}" for last in hang.last}
    who = _who(hang)
    parts = [
        f"{said_entity(job.places.rank(name))} {where.get(name, 'waits')}"
        for name in who[:_NAMES_SHOWN]
    ]
    if len(who) > len(parts):
        parts.append(f"{len(who) - len(parts):,} more wait")
    count = _waiters(hang)
    if count:
        others = f"{count:,} {'other is' if count == 1 else 'others are'}"
        parts.append(f"{others} in {_operation(hang, job)}")
    comms = {hang.communicator, *(last.communicator for last in hang.last)}
    why = "communicators used in different orders" if len(comms) > 1 else "each waits for another"
    return f"{', '.join(parts)}: {why}"


def _nobody_named(hang: Hang, job: HungJob) -> str:
    """Return a text about an operation that no known process holds up."""
    count, operation = len(hang.waiting), _operation(hang, job)
    if not count:
        return f"nobody that was measured is in {operation}"
    ranks = f"{count:,} {'rank' if count == 1 else 'ranks'}"
    if hang.verdict in (TRANSPORT, NETWORK):
        verb = "does" if count == 1 else "do"
        return f"{ranks} {verb} not come out of {operation}, to which all have come"
    if hang.verdict == DIVERGENT:
        who = cut_list((said_entity(job.places.rank(one)) for one in hang.waiting), _NAMES_SHOWN)
        verb, others = "waits" if count == 1 else "wait", number(len(hang.never_issued), "other")
        return f"{who} {verb} in {operation}, which {others} never called"
    return f"{ranks} {'waits' if count == 1 else 'wait'} in {operation}"


def _title(hang: Hang, job: HungJob) -> str:
    if not _who(hang):
        return _nobody_named(hang, job)
    who = cut_list((said_entity(job.places.rank(one)) for one in _who(hang)), _NAMES_SHOWN)
    many, operation = len(_who(hang)) > 1 or who.startswith("ranks "), _operation(hang, job)
    roots = set(_who(hang))
    match hang.verdict:
        case "dead" | "stopped first":
            return _crashed(who, many, hang, job)
        case "mismatched":
            called = {_call(last, job) for last in hang.last}
            what = f"{min(called)}, not" if len(called) == 1 else "something else than"
            return f"{who} called {what} {operation}; {_others_wait(hang, 'it')}"
        case "deadlock":
            return _in_orders(hang, job)
        case "network":
            verb = (
                "do not come on over the network" if many else "does not come on over the network"
            )
            return f"{who} {verb} in {operation}; {_others_wait(hang, 'it')}"
        case "transport":
            verb = "do not come out of" if many else "does not come out of"
            return f"{who} {verb} {operation}, to which all have come"
        case "dead or not measured":
            verb = "are" if many else "is"
            come = f"{who} {verb} not measured and may not have come to {operation}"
            return f"{come}; {_others_wait(hang, 'it')}"
    if roots & set(hang.not_started):
        have = "their GPUs have" if many else "its GPU has"
        return f"{who} called {operation}, but {have} not started it; {_others_wait(hang, 'it')}"
    return _stopped(who, hang, job)


def _next(hang: Hang, job: HungJob) -> str:
    """Return the command that tells more: a stack while the job runs, else a log of the node."""
    root = next((one for name in _who(hang) if (one := job.places.rank(name)).node), None)
    if root is None:
        return f"sacct -j {job.job_id} --format=JobID,State,ExitCode,NodeList"
    if not job.ending.is_over and root.pid is not None and hang.verdict != DEAD:
        return show_stack(root.node, root.pid, job.job_id)
    if hang.verdict in _CODE_AT_FAULT:
        # The stacks are gone; a second run shows which rank calls what.
        return "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL sbatch --export=ALL SCRIPT"
    times = [one.since_s for one in hang.last if one.process == root.name and one.since_s]
    at_s = max(times, default=hang.since_s)
    if at_s is None:
        return f"sacct -j {job.job_id} --format=JobID,State,ExitCode,NodeList"
    return show_journal(root.node, at_s, max(at_s, hang.since_s or at_s))


def _code(job: HungJob) -> str:
    code = job.ending.code_words
    return f" The job ended with {code}." if code else ""


def _detail(hang: Hang, behind: Sequence[Hang], job: HungJob) -> str:
    waited = f"{len(hang.waiting):,} waited in it for {elapsed(hang.age_s)}."
    if hang.verdict == STOPPED:
        waited = f"Who stops first while all others wait is the one that failed.{_code(job)}"
        if job.first in hang.roots:
            waited += " Slurm saw its task end before any other."
    if not hang.waiting:
        waited = f"It was called {elapsed(hang.age_s)} before the end, and nobody was in it."
    if hang.verdict == DIVERGENT and not hang.roots:
        waited += " Most others are in no operation: either it is one too many, or they stopped."
    others = len(behind)
    if others:
        waited += (
            f" {others:,} other communicator{' stands' if others == 1 else 's stand'} behind it."
        )
    if not hang.confirmed:
        waited += " That is suspect, no more: it might have ended, had the job gone on."
    elif job.ending.has_failed and hang.verdict not in (DEAD, STOPPED):
        waited += _code(job)
    return waited


def _finding(hang: Hang, behind: Sequence[Hang], job: HungJob) -> Finding:
    who, sure = _who(hang), "" if hang.confirmed else PERHAPS
    confidence = MEDIUM if hang.confirmed else LOW
    if hang.verdict == DEAD:
        confidence = HIGH  # two signs: it did not come, and gave no sign of life
    if hang.verdict == STOPPED and hang.age_s < GIVEN_UP_S and job.first not in hang.roots:
        confidence = LOW
    since_s, comm = hang.since_s, job.comm(hang.communicator)
    waiting = dict.fromkeys(name for one in (hang, *behind) for name in (*one.waiting, *one.behind))
    victims = [name for name in waiting if name not in who]
    more = len(victims) - _waiters(hang)
    behind_it = f", and {more:,} more behind it" if more > 0 and hang.waiting and who else ""
    in_it = len(hang.waiting) or None
    rule = _RULES[hang.verdict]
    return Finding(
        rule=rule.id,
        severity=rule.severity if hang.confirmed else WARNING,
        confidence=LOW if hang.verdict in (TRANSPORT, NOT_MEASURED) or not who else confidence,
        title=f"{sure}{_title(hang, job)}{behind_it}",
        detail=_detail(hang, behind, job),
        period=Period(since_s, since_s + hang.age_s) if since_s is not None else None,
        entities=(*map(job.places.rank, who), Entity("communicator", comm)),
        evidence=(Evidence("boxes", "in flight", hang.age_s, "s", count=in_it),),
        actions=(rule.action,),
        cost_s=hang.age_s if hang.confirmed else None,
        victims=tuple(map(job.places.rank, victims[:_VICTIMS_SHOWN])),
        next=_next(hang, job),
    )  # fmt: skip


def describe_hangs(hangs: Sequence[Hang], job: HungJob) -> Iterator[Finding]:
    """Yield a finding for each root, about the first operation that it holds up.

    Hangs with an unknown cause are put behind the ranks that were not measured, if any, else behind
    the operation that no process comes out of.
    """
    unnamed = {one.verdict for one in hangs if not one.roots}
    behind = next((one for one in (NOT_MEASURED, TRANSPORT, NETWORK) if one in unnamed), BLOCKED)
    by_root: dict[tuple[str, ...], list[Hang]] = {}
    for hang in hangs:
        unknown = behind if hang.verdict == BLOCKED else hang.verdict
        by_root.setdefault(hang.roots or (unknown,), []).append(hang)
    for found in by_root.values():
        first = next((one for one in found if one.verdict == NOT_MEASURED), found[0])
        if first.roots:
            first = found[0]
        yield _finding(first, [one for one in found if one is not first], job)


def describe_quiet_end(quiet: QuietEnd, job: HungJob) -> Finding:
    """Return the finding about a job of which no rank was in an operation at its end."""
    over = job.ending.is_over
    when = "in the job's last" if over else "for"
    return Finding(
        rule=rules.HANG_OUTSIDE.id,
        severity=rules.HANG_OUTSIDE.severity,
        confidence=LOW,
        title=f"{PERHAPS}no rank was in an operation {when} {elapsed(quiet.lasted_s)}",
        detail=f"The last operation ended at {_time(quiet.since_s)}. All measured ranks lived on, "
        f"and none waits in an operation. Before that, no pause was longer than "
        f"{elapsed(quiet.pause_s)}.",
        period=Period(quiet.since_s, quiet.since_s + quiet.lasted_s),
        entities=(Entity("job", ""),),
        evidence=(
            Evidence("boxes", "time without operations", quiet.lasted_s, "s", quiet.pause_s),
        ),
        actions=(rules.HANG_OUTSIDE.action,),
        next="" if over else f"nccl-inspector ras {job.job_id}",
    )
