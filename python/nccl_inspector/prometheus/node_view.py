# SPDX-License-Identifier: Apache-2.0
"""The live view of a cluster, from the series in its Prometheus."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from nccl_inspector.analysis.hang.suspect_age import SUSPECT_S
from nccl_inspector.errors import InspectorError
from nccl_inspector.live.troubles import age_words
from nccl_inspector.live.view import (
    P2P,
    Flow,
    LiveJob,
    LiveRank,
    Trouble,
    TroubleKind,
    View,
    class_of,
    gather,
    natural,
    order_of,
)
from nccl_inspector.model.bandwidth import bus_factor
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.prometheus.api import Api, PromSample
from nccl_inspector.prometheus.hang_view import Absent, find_absent
from nccl_inspector.prometheus.live_queries import GPU, JOB, LiveQuestions

Row = tuple[str, ...]  # the values of the labels that identify a row

# From so many ranks on, and if their median share of waiting is at least this, the rank that waits
# least is called late. It must wait at most half the median.
LATE_RANKS_MIN, LATE_WAITING_MIN = 3, 0.1

# A job stands still if it completes nothing for so many times as long as ever in the last hour.
STILL_TIMES = 2.0
# Of so many jobs that wait it is asked for whom; each takes four queries.
_ASKED_MAX = 10

_WINDOW_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_WINDOW = re.compile(r"([1-9][0-9]{0,5})(ms|s|m|h)")
_STATES = {
    "lost": (TroubleKind.LOST, "died without finalizing"),
    "stopped": (TroubleKind.STOPPED, "no longer beat: stopped, or starved of CPU"),
}
_NO_SERIES = (
    "no job has series here: jobs in the modes report and json have none, the others after their "
    "first interval (30 s); on the job's node `nccl-inspector top` shows them all"
)
_NOTES = (
    "WAIT: share of the time in collectives, all ranks, against the fastest rank's mean",
    "GB/s: mean bus bandwidth of a rank while in operations of the class, waiting included",
    "BEAT: since its metrics were last written; values are as old as the last scrape",
)


def window_s(window: str) -> float:
    """Return a window like `2m` in seconds; 0: the text is not a window."""
    match = _WINDOW.fullmatch(window)
    return int(match[1]) * _WINDOW_S[match[2]] if match else 0.0


def _is_number(text: str) -> bool:
    return re.fullmatch("-?[0-9]{1,10}", text) is not None


def _row(sample: PromSample, by: str) -> Row:
    return tuple(sample.labels.get(label, "") for label in by.split(", "))


def _values(samples: Iterable[PromSample], by: str) -> dict[Row, float]:
    found: dict[Row, float] = defaultdict(float)
    for sample in samples:
        found[_row(sample, by)] += sample.value
    return found


@dataclass
class _JobAnswers:
    """What the answers say about one job, while they are being combined."""

    user: str = "-"
    partition: str = ""
    nodes: int = 0
    states: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    troubles: list[Trouble] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)


class PrometheusView:
    """The live view of a cluster, asked of its Prometheus."""

    def __init__(self, url: str, wanted: int | None, window: str) -> None:
        """Ask nothing yet. `wanted`: show only this job, with its ranks.

        Raises:
            InspectorError: `url` is not the address of a Prometheus.
        """
        self._api = Api(url)
        self._window = window
        self.choose(wanted)

    def choose(self, job_id: int | None) -> None:
        """Ask from now on of one job and its ranks, or of all jobs."""
        self._wanted = job_id
        self._jobs = LiveQuestions(job_id, self._window, JOB)
        self._gpus = LiveQuestions(job_id, self._window, GPU)

    def look(self) -> View:
        """Return the view as it is now.

        Raises:
            InspectorError: the Prometheus does not answer, or its answer is not one of a
                Prometheus.
        """
        jobs = self._find_jobs()
        flows = self._flows(self._jobs) if jobs else {}
        drops = _values(self._api.query(self._jobs.drops()), JOB) if jobs else {}
        oldest = _values(self._api.query(self._jobs.oldest()), JOB) if jobs else {}
        self._find_hangs(jobs, oldest)
        self._find_absent(jobs, oldest)
        ranks = self._ranks(jobs) if self._wanted and jobs else {}
        found = [
            _as_job(row, job, flows.get(row), oldest.get(row), drops.get(row), ranks.get(row, ()))
            for row, job in jobs.items()
        ]
        return View(
            self._api.url,
            time.time(),
            window_s(self._window),
            tuple(sorted(found, key=lambda job: job.order)),
            () if found else (_NO_SERIES,),
            _NOTES if self._wanted else _NOTES[:2],
        )

    def _find_jobs(self) -> dict[Row, _JobAnswers]:
        """Return the jobs that have series now; rates would also show jobs that just ended."""
        jobs: dict[Row, _JobAnswers] = defaultdict(_JobAnswers)
        for sample in self._api.query(self._jobs.information()):
            job = jobs[_row(sample, JOB)]
            job.user = sample.labels.get("user", "-")
            job.partition = sample.labels.get("partition", "")
            job.nodes += int(sample.value)
        for sample in self._api.query(self._jobs.processes()):
            job = jobs[_row(sample, JOB)]
            state = sample.labels.get("state", "")
            job.states[state] += sample.value
            if state in _STATES and sample.value > 0:
                kind, words = _STATES[state]
                node, count = sample.labels.get("node", ""), int(sample.value)
                many = "1 process" if count == 1 else f"{count} processes"
                job.troubles.append(Trouble(kind, count, f"{many} of {node}: {words}"))
        found = {row: job for row, job in jobs.items() if JOB_ID.fullmatch(row[1])}
        if jobs and not found:
            raise InspectorError("the jobs in this Prometheus have no label slurm_job_id")
        return found

    def _find_hangs(self, jobs: Mapping[Row, _JobAnswers], oldest: Mapping[Row, float]) -> None:
        """Note the oldest operation in flight of each job, if it is suspiciously old."""
        worst: dict[Row, PromSample] = {}
        for sample in self._api.query(self._jobs.oldest_of_ranks(SUSPECT_S)) if jobs else ():
            row = _row(sample, JOB)
            if row in jobs and (row not in worst or sample.value > worst[row].value):
                worst[row] = sample
        for row, sample in worst.items():
            own = sample.labels
            words = (
                f"{own.get('node')} {own.get('gpu')} (rank {own.get('rank')} of "
                f"{own.get('comm_name')}) has waited {age_words(sample.value)}"
            )
            jobs[row].troubles.append(Trouble(TroubleKind.HUNG, sample.value, words))
        for row, age_s in oldest.items():  # if the series of the ranks do not say it
            if row in jobs and row not in worst and age_s > SUSPECT_S:
                words = f"a rank has waited {age_words(age_s)} in an operation"
                jobs[row].troubles.append(Trouble(TroubleKind.HUNG, age_s, words))

    def _find_absent(self, jobs: Mapping[Row, _JobAnswers], oldest: Mapping[Row, float]) -> None:
        """Note which jobs complete nothing any more, and for whom the others wait there."""
        still = _values(self._api.query(self._jobs.still()), JOB) if jobs else {}
        worst = sorted(jobs, key=lambda row: -max(still.get(row, 0.0), oldest.get(row, 0.0)))
        for row in worst[:_ASKED_MAX]:
            still_s = still.get(row, 0.0)
            if max(still_s, oldest.get(row, 0.0)) <= SUSPECT_S:
                return
            ask = LiveQuestions(int(row[1]), self._window, JOB)
            if still_s > SUSPECT_S:
                usual_s = _values(self._api.query(ask.longest_still()), JOB).get(row, 0.0)
                if still_s > STILL_TIMES * usual_s:
                    jobs[row].troubles.append(_stopped(still_s, usual_s))
            answers = (
                [sample for sample in self._api.query(query) if _row(sample, JOB) == row]
                for query in (ask.flights(), ask.called(), ask.mixed())
            )
            jobs[row].absent = find_absent(*answers)
            for one in jobs[row].absent[:1]:
                more = len(jobs[row].absent) - 1
                words = f"{' '.join(one.place)} {one.trouble().words}"
                words += f"; and {more} more" if more else ""
                jobs[row].troubles.append(replace(one.trouble(), words=words))

    def _flows(self, ask: LiveQuestions) -> dict[Row, Flow]:
        """Return the flow of each row per second: the span of time is one second.

        Rates are over a window. What has stopped in it does nothing now, and of what no longer
        writes nothing is known.
        """
        query, by = self._api.query, ask.by
        still = _values(query(ask.still()), by)
        written = _values(query(ask.written("max")), by)
        operations: dict[Row, float] = defaultdict(float)
        for part in ask.operations():
            for row, value in _values(query(part), by).items():
                operations[row] += value
        bus_bytes = _by_class(query(ask.collectives("bytes")), by, _bus_bytes)
        busy_s = _by_class(query(ask.collectives("busy_seconds")), by, _same)
        for table, what in ((bus_bytes, "bytes"), (busy_s, "busy_seconds")):
            for row, value in _values(query(ask.p2p(what)), by).items():
                table[row][P2P] = value
        waitable = _values(query(ask.waitable()), by)
        transfer = _values(query(ask.transfer()), by)
        return {
            row: Flow(
                value,
                bus_bytes[row],
                busy_s[row],
                max(0.0, waitable.get(row, 0.0) - transfer.get(row, 0.0)),
                waitable.get(row, 0.0),
            )
            if still.get(row, 0.0) <= SUSPECT_S
            else Flow()
            for row, value in operations.items()
            if written.get(row, 0.0) <= window_s(self._window)
        }

    def _ranks(self, jobs: Mapping[Row, _JobAnswers]) -> dict[Row, list[LiveRank]]:
        """Return the ranks of each job; those that share a GPU make one entry."""
        flows = self._flows(self._gpus)
        drops = _values(self._api.query(self._gpus.drops()), GPU)
        written = _values(self._api.query(self._gpus.written()), GPU)
        oldest: dict[Row, PromSample] = {}
        for sample in self._api.query(self._gpus.oldest_of_ranks(0.0)):
            row = _row(sample, GPU)
            if row not in oldest or sample.value > oldest[row].value:
                oldest[row] = sample
        found: dict[Row, list[LiveRank]] = defaultdict(list)
        absent = {(*row, *one.place): one for row, job in jobs.items() for one in job.absent}
        for row, name in _names(self._api.query(self._gpus.ranks())).items():
            found[row[:2]].append(
                _rank(
                    name, row, flows.get(row), oldest.get(row), written.get(row), drops.get(row),
                    absent.get(row),
                )
            )  # fmt: skip
        for ranks in found.values():
            ranks[:] = _mark_late(ranks)
            ranks.sort(key=lambda rank: (*order_of(rank.troubles), natural(rank.name)))
        return found


def _same(_labels: Mapping[str, str], value: float) -> float:
    return value


def _bus_bytes(labels: Mapping[str, str], value: float) -> float:
    return value * bus_factor(labels.get("collective", ""), int(labels["nranks"]))


def _by_class(
    samples: Iterable[PromSample], by: str, weigh: Callable[[Mapping[str, str], float], float]
) -> dict[Row, dict[str, float]]:
    """Return sums by row and class; operations without a bus bandwidth are left out."""
    found: dict[Row, dict[str, float]] = defaultdict(dict)
    for sample in samples:
        own = sample.labels
        sizes = own.get("nranks", ""), own.get("n_nodes", "")
        if not all(map(_is_number, sizes)):
            continue
        nranks, nnodes = map(int, sizes)
        func = own.get("collective", "")
        if not bus_factor(func, nranks):
            continue
        word, row = class_of(func, nranks, nnodes), _row(sample, by)
        found[row][word] = found[row].get(word, 0.0) + weigh(own, sample.value)
    return found


def _names(samples: Iterable[PromSample]) -> dict[Row, str]:
    """Return the name of each GPU's rank, or ranks, in its largest communicator."""
    largest: dict[Row, tuple[int, str, set[str]]] = {}
    for sample in samples:
        own = sample.labels
        if not (_is_number(own.get("nranks", "")) and _is_number(own.get("rank", ""))):
            continue
        row, nranks, comm = _row(sample, GPU), int(own["nranks"]), own.get("comm", "")
        known = largest.get(row)
        if known is None or nranks > known[0]:
            largest[row] = nranks, comm, {own["rank"]}
        elif (nranks, comm) == known[:2]:
            known[2].add(own["rank"])
    return {
        row: f"rank {','.join(sorted(ranks, key=int))}" for row, (_, _, ranks) in largest.items()
    }


def _rank(
    name: str,
    row: Row,
    flow: Flow | None,
    oldest: PromSample | None,
    written_s: float | None,
    drops: float | None,
    absent: Absent | None,
) -> LiveRank:
    troubles = [absent.trouble()] if absent else []
    where = oldest.labels.get("comm_name", "") if oldest else ""
    if oldest and oldest.value > SUSPECT_S:
        words = f"has waited {age_words(oldest.value)} in {where}"
        troubles.append(Trouble(TroubleKind.HUNG, oldest.value, words))
    if drops:
        words = f"has {drops:.0f} events that were not measured"
        troubles.append(Trouble(TroubleKind.DROPS, drops, words))
    return LiveRank(
        name=name,
        node=row[2],
        gpu=row[3],
        flow=flow,
        oldest_s=oldest.value if oldest and oldest.value else None,
        oldest=where,
        beat_s=written_s,
        drops=None if drops is None else int(drops),
        troubles=tuple(troubles),
    )


def _stopped(still_s: float, usual_s: float) -> Trouble:
    words = f"no operation of it has ended for {age_words(still_s)}"
    if usual_s:
        words += f"; in the last hour the longest pause was {age_words(usual_s)}"
    return Trouble(TroubleKind.STILL, still_s, words)


def _mark_late(ranks: Sequence[LiveRank]) -> list[LiveRank]:
    """Return the ranks; one that waits much less than the others gets the trouble LATE."""
    # By position, not by name: two programs of a job number their ranks alike.
    shares = {
        at: rank.flow.waiting
        for at, rank in enumerate(ranks)
        if rank.flow and rank.flow.waiting is not None
    }
    if len(shares) < LATE_RANKS_MIN:
        return list(ranks)
    usual = median(shares.values())
    least = min(shares, key=lambda at: shares[at])
    if usual < LATE_WAITING_MIN or shares[least] > usual / 2:
        return list(ranks)
    words = f"waits least, {shares[least]:.0%} where others do {usual:.0%}: it may be late"
    late = Trouble(TroubleKind.LATE, usual, words)
    return [
        replace(rank, troubles=(*rank.troubles, late)) if at == least else rank
        for at, rank in enumerate(ranks)
    ]


def _as_job(
    row: Row,
    job: _JobAnswers,
    flow: Flow | None,
    oldest_s: float | None,
    drops: float | None,
    ranks: Sequence[LiveRank],
) -> LiveJob:
    troubles = list(job.troubles)
    troubles += [one for one in gather(ranks) if one.kind == TroubleKind.LATE]
    if drops:
        words = f"{drops:.0f} events were not measured"
        troubles.append(Trouble(TroubleKind.DROPS, drops, words))
    worst = {trouble.kind: trouble for trouble in sorted(troubles, key=lambda one: one.weight)}
    return LiveJob(
        id=int(row[1]),
        cluster=row[0],
        user=job.user,
        partition=job.partition,
        nodes=job.nodes,
        alive=int(job.states["running"]),
        expected=int(sum(job.states.values())),
        flow=flow,
        oldest_s=oldest_s or None,
        drops=None if drops is None else int(drops),
        troubles=tuple(worst[kind] for kind in sorted(worst)),
        ranks=tuple(ranks),
    )
