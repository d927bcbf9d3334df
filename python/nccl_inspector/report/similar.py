# SPDX-License-Identifier: Apache-2.0
"""Compare a card with those of similar jobs in the store.

Only jobs of the same user can change the verdict. Figures of other users' jobs are shown with the
number of users and decide nothing, because they come from those users' processes.
"""

from collections.abc import Sequence
from dataclasses import replace

from nccl_inspector.analysis.history.baseline import (
    JOBS_MIN,
    Compared,
    Others,
    beside_others,
    compare_kinds,
    make_baseline,
)
from nccl_inspector.analysis.kinds import KindKey, key_of, kinds_of
from nccl_inspector.errors import InspectorError
from nccl_inspector.model import rules
from nccl_inspector.model.bandwidth import size_label
from nccl_inspector.model.card import (
    DEGRADED,
    HEALTHY,
    INFO,
    MEDIUM,
    NETWORK,
    UNKNOWN,
    WARNING,
    Card,
    Entity,
    Evidence,
    Finding,
    Input,
    Operations,
    Verdict,
)
from nccl_inspector.model.transport import ON_NETWORK
from nccl_inspector.store.place import IndexPlace

# Share of the comparable operations' time. Among 32 kinds of a healthy job, some kind is low by
# chance: in 40 % of jobs, if there are five similar jobs that differ by 5 %.
LOW_SHARE_MIN = 0.5


def _low_share(compared: Sequence[Compared]) -> float:
    """Return the share of kinds that are low, weighted by their time."""
    alike = [one for one in compared if not one.differs]
    total = sum(one.kind.busy_ns for one in alike)
    return sum(one.kind.busy_ns for one in alike if one.is_low) / total if total else 0.0


def _finding(one: Compared, low_share: float) -> Finding:
    key, gbs = one.kind.key, one.kind.bus_gbs or 0.0
    what = f"{key.transport} {key.func} {size_label(key.size_class)}"
    return Finding(
        rules.SLOWER_THAN_SIMILAR.id, WARNING if low_share >= LOW_SHARE_MIN else INFO, MEDIUM,
        f"{what} is slower than in this user's similar jobs: "
        f"{one.median_gbs:.3g} -> {gbs:.3g} GB/s",
        f"{one.delta:+.0%} beside the median of {one.jobs} jobs of this user with as many ranks "
        f"and nodes and the same GPUs, network and NCCL. So are {low_share:.0%} of the job's "
        "operations, by their time.",
        None,
        (Entity("job", ""),),
        (
            Evidence("boxes", f"{what} bus bandwidth", gbs, "GB/s", one.median_gbs, one.jobs),
            Evidence("baseline", "robust z", one.z, "sigma", -3.0, one.jobs),
        ),
        (rules.SLOWER_THAN_SIMILAR.action,),
        next="nccl-inspector nodes",
    )  # fmt: skip


def _with_deltas(card: Card, known: dict[KindKey, Compared]) -> tuple[Operations, ...]:
    """Return the card's operations, with the difference of those that were compared."""
    comms = {comm.id: comm for comm in card.communicators}

    def put_in(one: Operations) -> Operations:
        comm = comms.get(one.communicator)
        found = known.get(key_of(card, comm, one)) if comm else None
        if found is None or found.differs or not one.bus_gbs:
            return one
        return replace(one, baseline_delta=one.bus_gbs / found.median_gbs - 1)

    return tuple(map(put_in, card.operations)) if known else card.operations


def _verdict(card: Card, low: list[Compared], findings: list[Finding]) -> Verdict:
    wrong = any(one.severity == WARNING for one in findings)
    if not wrong or card.verdict.status != HEALTHY:
        return card.verdict
    transports = {one.kind.key.transport for one in low}
    cause = NETWORK if transports <= ON_NETWORK else UNKNOWN
    return replace(
        card.verdict, status=DEGRADED, cause=cause, confidence=MEDIUM, summary=findings[0].title
    )


def beside_similar(card: Card, place: IndexPlace) -> Card:
    """Return the card with the comparison to similar jobs; without an index the card says so.

    A user's own index and the index of all jobs give the same verdict.
    """
    kinds = kinds_of(card)
    state, detail = "absent", ""
    compared: list[Compared] = []
    others: list[Others] = []
    try:
        place.check_readable()
        # What reads a database takes a third of a report's start. Most reports have no index.
        from nccl_inspector.store.index import reading
        from nccl_inspector.store.queries import Owner, others_past, own_past

        with reading(place) as (index, _):
            keys = [kind.key for kind in kinds]
            owner = Owner(card.job.uid, card.job.user)
            wanted = keys, owner, card.job.job_id, place.cluster
            compared = compare_kinds(kinds, own_past(index, *wanted))
            past = others_past(index, *wanted)
            found = (beside_others(kind, past[kind.key]) for kind in kinds)
            others = [one for one in found if one is not None]
            state = "present" if compared else "absent"
            detail = "" if compared else f"fewer than {JOBS_MIN} similar jobs of this user"
    except InspectorError as err:
        detail = str(err)
    low = [one for one in compared if one.is_low]
    share = _low_share(compared)
    findings = [_finding(one, share) for one in low]
    known = {one.kind.key: one for one in compared}
    quality = card.data_quality
    return replace(
        card,
        verdict=_verdict(card, low, findings),
        findings=(*card.findings, *findings),
        operations=_with_deltas(card, known),
        data_quality=replace(quality, inputs=(*quality.inputs, Input("baseline", state, detail))),
        baseline=make_baseline(compared, others),
    )
