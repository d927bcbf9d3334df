# SPDX-License-Identifier: Apache-2.0
"""Ask a Prometheus about a job that has ended, and make a report card from the answers."""

import time
from collections import Counter

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import (
    Card,
    Communicator,
    DataQuality,
    Environment,
    Input,
    Job,
    Throughput,
    TimeLine,
)
from nccl_inspector.model.kind_labels import comm_of, kind_of
from nccl_inspector.prometheus.api import Api, PromSample
from nccl_inspector.prometheus.kind_windows import FoundKinds, operations_of, series_of
from nccl_inspector.prometheus.past_queries import (
    COUNTED,
    MEANS,
    P2P_COUNTED,
    P2P_MEANS,
    JobQuestions,
)
from nccl_inspector.render.cards_of_means import BY_NVIDIA, NOT_TOLD, communicators, nobody_named
from nccl_inspector.system.printable import visible

LOOK_BACK_S = 30 * 86400  # if nobody says when the job ran
WINDOWS_MAX, SERIES_MAX = 240, 64
_WINDOW_S_MIN = 60  # two scrapes of the usual 30 s
_SEARCHES = 4
_FAMILIES = "collective", "p2p"


def find_period(api: Api, job_id: int, start_s: float, end_s: float) -> tuple[float, float]:
    """Return when the job had series, as Unix times, accurate to about a minute.

    The search is between `start_s` and `end_s`.

    Raises:
        InspectorError: the job had none, or the Prometheus does not answer.
    """
    for _ in range(_SEARCHES):
        step = max(_WINDOW_S_MIN, round((end_s - start_s) / 1000))
        ask = JobQuestions(job_id, step).presence()
        tracks = api.query_range(ask, start_s, end_s + step, step, Counter())
        times = [at for track in tracks for at, value in track.points if value > 0]
        if not times:
            raise InspectorError(f"{api.url}: no series of job {job_id} in that time")
        start_s, end_s = min(times) - step, max(times)
        if step == _WINDOW_S_MIN:
            break
    return start_s, end_s


class _JobSeries:
    """Asks about one job."""

    def __init__(self, api: Api, job_id: int, start_s: float, end_s: float) -> None:
        window_s = max(_WINDOW_S_MIN, -(-int(end_s - start_s) // WINDOWS_MAX))
        first = int(start_s) // window_s * window_s
        windows = max(1, -(-int(end_s - first) // window_s))
        self._api = api
        self._ask = JobQuestions(job_id, window_s)
        self.span_s = windows * window_s
        self.end_s = first + self.span_s
        self.refused: Counter[str] = Counter()
        self.found = FoundKinds(first, window_s, windows, self.refused)

    def _now(self, promql: str) -> list[PromSample]:
        return self._api.query(promql, self.end_s)

    def _put(self, promql: str, family: str, what: str, scale: float = 1.0) -> bool:
        step = self.found.window_s
        begin = self.found.start_s + step
        tracks = self._api.query_range(promql, begin, self.end_s, step, self.refused)
        self.found.put(tracks, family, what, scale)
        return bool(tracks)

    def ask_kinds(self) -> bool:
        """Ask about the operations; return whether the counters of our plugin were found."""
        counted = False
        for family in _FAMILIES:
            window_s = float(self.found.window_s)
            if self._put(self._ask.time_s(family), family, "time_ns", 1e9):
                counted = True
                self._put(self._ask.size_bytes(family), family, "size_bytes")
                self._put(self._ask.operations(family), family, "operations", window_s)
                self._put_counts(family)
            elif self._put(self._ask.mean_time_us(family), family, "time_ns", 1e3):
                self._put(self._ask.mean_gbs(family), family, "bus_gbs")
        self.found.finish()
        return counted

    def _put_counts(self, family: str) -> None:
        for sample in self._now(self._ask.counts(family, self.span_s)):
            kind = kind_of(sample.labels, JobQuestions.func(family))
            if kind in self.found.kinds and 0 <= sample.value < 1e18:
                self.found.kinds[kind].count = round(sample.value)

    def communicators(self) -> tuple[Communicator, ...]:
        """Ask which ranks were in each communicator."""
        members = []
        for metric in (COUNTED, MEANS, P2P_COUNTED, P2P_MEANS):
            for sample in self._now(self._ask.members(metric, self.span_s)):
                comm, own = comm_of(sample.labels), sample.labels
                if comm is None:
                    self.refused["odd_labels"] += 1
                    continue
                rank = own.get("rank") or f"{own.get('node')} {own.get('gpu')}"
                members.append((comm, rank, visible(own.get("node", ""))))
        return communicators(members)

    def job(self, job_id: int) -> tuple[Job, dict[str, str]]:
        """Ask what the agents told of the job; also return the lost processes, by node."""
        said = [sample.labels for sample in self._now(self._ask.information(self.span_s))]
        first = {name: visible(word) for name, word in (said[0] if said else {}).items()}
        lost = {
            visible(sample.labels.get("node", "")): f"{sample.value:.0f} processes"
            for sample in self._now(self._ask.lost(self.span_s))
        }
        job = Job(
            job_id=job_id, user=first.get("user", ""), account=first.get("account", ""),
            partition=first.get("partition", ""), cluster=first.get("cluster", ""),
            nodelist=first.get("slurm_nodelist", ""), num_nodes=len(said) or None,
            start_s=float(self.found.start_s), end_s=float(self.end_s),
        )  # fmt: skip
        return job, lost

    def drops(self) -> dict[str, int]:
        """Ask how many events were not measured; return them by reason."""
        return {
            visible(sample.labels.get("reason", "")): round(sample.value)
            for sample in self._now(self._ask.drops(self.span_s))
        }

    def throughput(self) -> Throughput | None:
        """Ask for the throughput that the job reported; None: it reported none."""
        step, first = self.found.window_s, self.found.start_s
        tracks = self._api.query_range(
            self._ask.throughput(), first + step, self.end_s, step, self.refused
        )
        if not tracks:
            return None
        values = {round((at - first) / step) - 1: value for at, value in tracks[0].points}
        unit = visible(tracks[0].labels.get("unit", ""))
        return Throughput(unit, "mark", tuple(values.get(at) for at in range(self.found.windows)))


def _quality(
    asked: _JobSeries, communicators: tuple[Communicator, ...], lost: dict[str, str], counted: bool
) -> DataQuality:
    largest = max(communicators, key=lambda one: one.nranks, default=None)
    missing = [
        "by Prometheus alone: means of windows, with the waiting for late ranks in them; who was "
        "waited for is not known"
    ]
    if not counted:
        missing.append(BY_NVIDIA)
    return DataQuality(
        ranks_expected=largest.nranks if largest else None,
        ranks_seen=largest.ranks_seen if largest else 0,
        nodes_missing=(),
        killed=tuple(f"{words} of {node}" for node, words in sorted(lost.items())),
        dropped=asked.drops(),
        refused=dict(+asked.refused),
        timing=NOT_TOLD if asked.found.kinds else "none",
        inputs=(Input("prometheus", "partial", f"windows of {asked.found.window_s} s"),),
        missing=tuple(missing),
    )


def prometheus_card(
    url: str, job_id: int, start_s: float | None = None, end_s: float | None = None
) -> Card:
    """Return the card of a job, made from its series.

    `start_s`, `end_s`: Unix times between which the job ran, from Slurm; None: not known.

    Raises:
        InspectorError: the Prometheus does not answer, or has no series of the job.
    """
    api = Api(url)
    end = time.time() if end_s is None else end_s
    first, last = find_period(api, job_id, end - LOOK_BACK_S if start_s is None else start_s, end)
    asked = _JobSeries(api, job_id, first, last)
    counted = asked.ask_kinds()
    comms = asked.communicators()
    job, lost = asked.job(job_id)
    found = asked.found
    return Card(
        job=job,
        verdict=nobody_named("a Prometheus"),
        environment=Environment(),
        data_quality=_quality(asked, comms, lost, counted),
        communicators=comms,
        operations=operations_of(found),
        timeline=TimeLine(found.window_s, found.start_s, found.windows,
                          series_of(found, SERIES_MAX), asked.throughput()),
    )  # fmt: skip
