"""What a job's report must say, by what the stand-in logged and what was done to the job."""

import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    CRASHED,
    DEGRADED,
    FAILED,
    HEALTHY,
    HUNG,
    INFO,
    NO_DATA,
    PERHAPS_HUNG,
    WARNING,
    Card,
)
from nccl_inspector.model.hostlist import expand
from nccl_inspector.model.process import EXITED, FINALIZED
from nccl_inspector.render.json import card_from_json
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.summary.codec import NodeSummary
from tests.fuzzers.forms import UnsafeOutputError, check_card
from tests.sandbox import Cluster
from tests.soak.plan import Spec
from tests.support.sandbox import jobs

_ENDED = {CANNOT_TELL, NO_DATA, HEALTHY, FAILED, CRASHED, HUNG, PERHAPS_HUNG}
# What the verdict may be, by what was done; of several faults any of theirs.
_ALLOWED = {
    "": {HEALTHY, CANNOT_TELL, NO_DATA},
    "task": {FAILED, CRASHED, CANNOT_TELL, NO_DATA, HUNG, PERHAPS_HUNG},
    "scancel": _ENDED,
    "batch": _ENDED,
    "stepd": _ENDED,
    "requeue": _ENDED,
}


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that is over."""

    job_id: int
    spec: Spec
    state: str
    nodelist: str
    restart: int
    faults: frozenset[str]
    # While a user filled the run directory's tmpfs. Without quotas, which this kernel may not have,
    # others lose what they would have measured on that node; nothing may be wrong, only missing.
    crowded: bool

    @property
    def is_whole(self) -> bool:
        """Whether nothing may be missing from its report.

        A job that is requeued while it ends may begin again on a node without a prolog: slurmd
        takes it for one that it knows, and its tasks are told so.
        """
        well = self.state == "COMPLETED" and not self.faults
        return self.spec.measured and well and not self.crowded


def judge(cluster: Cluster, store: Path, job: Ended) -> Iterator[str]:
    """Yield every difference between what is there of a job and what must be."""
    try:
        loaded = load_summaries(job.job_id, cluster.layout.reports, None)
    except InspectorError as err:
        if job.is_whole:
            yield f"no report: {err}"
        return
    if job.spec.mode not in ("prom", "report", "prom+json"):
        yield f"a report of a job in mode {job.spec.mode or 'off'!r}"
        return
    yield from _identity(loaded.summaries, job)
    card = build_card(loaded)
    try:
        check_card(card)
    except UnsafeOutputError as err:
        yield str(err)
    if job.spec.measured:
        yield from _operations(cluster, loaded.summaries, job)
        yield from _verdict(card, job, all_ended=_all_ended(loaded.summaries, job))
    yield from _stored(store, job)


def _identity(summaries: tuple[NodeSummary, ...], job: Ended) -> Iterator[str]:
    uid = pwd.getpwnam(job.spec.user).pw_uid
    nodes = expand(job.nodelist)
    for one in summaries:
        head = one.head
        if (head.job_id, head.user, head.uid) != (job.job_id, job.spec.user, uid):
            yield f"{head.node}: of job {head.job_id}, user {head.user} ({head.uid})"
        if job.spec.measured and not job.faults and head.node not in nodes:
            yield f"{head.node} is none of the job's nodes {job.nodelist}"
    if job.is_whole:
        there = {one.head.node for one in summaries}
        if there != set(nodes):
            yield f"summaries of {sorted(there)}, nodes {nodes}"


def _operations(cluster: Cluster, summaries: tuple[NodeSummary, ...], job: Ended) -> Iterator[str]:
    logs = jobs.oplog(cluster, job.job_id, job.spec.user)
    counted: dict[int, int] = {}
    for summary in summaries:
        for process in summary.processes:
            rank = process.facts.procid
            ops = sum(key.ops for key in process.keys)
            counted[-1 if rank is None else rank] = ops
    if summaries[0].head.restart != job.restart:
        return  # the latest attempt has no report: it was ended before it began
    logged = {rank: _lines(logs / f"{rank}.jsonl") for rank in range(job.spec.ranks)}
    if job.is_whole and counted.keys() != logged.keys():
        yield f"ranks {sorted(counted)} of {job.spec.ranks}"
    for rank, ops in counted.items():
        least = logged.get(rank, 0)
        # The profiler hears of an operation before the application logs it.
        if not least <= ops <= least + (0 if job.is_whole else 1) and not job.crowded:
            yield f"rank {rank}: {ops} operations counted, {least} logged"


def _all_ended(summaries: tuple[NodeSummary, ...], job: Ended) -> bool:
    """Whether all ranks were done with NCCL: what ends a task after that is no fault of it."""
    states = [one.facts.state for summary in summaries for one in summary.processes]
    return len(states) == job.spec.ranks and {FINALIZED, EXITED}.issuperset(states)


def _verdict(card: Card, job: Ended, *, all_ended: bool) -> Iterator[str]:
    faults = job.faults or ({""} if job.state == "COMPLETED" else {"scancel"})
    if all_ended:
        faults |= {""}
    allowed = set().union(*(_ALLOWED[one] for one in faults))
    status = card.verdict.status
    if status not in allowed:
        found = [one.title for one in card.findings if one.severity != INFO]
        yield f"verdict {status} ({card.verdict.cause}), allowed {sorted(allowed)}: {found}"
    if status == DEGRADED or (not job.faults and job.state == "COMPLETED"):
        for one in card.findings:
            if one.severity == WARNING and one.rule == rules.STRAGGLER.id:
                names = ", ".join(entity.name for entity in one.entities)
                yield f"a healthy job's {names} is accused: {one.title}"


def _stored(store: Path, job: Ended) -> Iterator[str]:
    for path in sorted((store / str(job.job_id)).glob("*.json")):
        try:
            card = card_from_json(path.read_bytes())
        except InspectorError as err:
            yield f"stored {path.name}: {err}"
            continue
        if (card.job.job_id, card.job.user) != (job.job_id, job.spec.user):
            yield f"stored {path.name}: of job {card.job.job_id}, user {card.job.user}"


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0
