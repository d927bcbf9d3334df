# SPDX-License-Identifier: Apache-2.0
"""Compare two jobs, such as the same script yesterday and today: what changed.

A time counts as changed if it differs by more than chance makes for so many operations, and by more
than the histograms can resolve. Smaller differences between two healthy runs are noise.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import hypot

from nccl_inspector.analysis.kinds import algo_family, middle
from nccl_inspector.model.card import Card, Operations
from nccl_inspector.model.hostlist import compress_within

CHANGE_MIN = 0.03  # of T: the width of a histogram's bucket
ERRORS_MIN = 5.0  # of the difference of two medians
WAITING_MIN = 0.05  # in points of the waiting share
SLOWER, FASTER, NOISE, UNKNOWN, ONLY_A, ONLY_B = (
    "slower", "faster", "within noise", "cannot tell", "only in A", "only in B",
)  # fmt: skip
_NODES_CHARS = 60


@dataclass(frozen=True, slots=True, order=True)
class ComparedKind:
    """What is compared with its like; not a communicator's id, which differs between runs."""

    name: str
    nranks: int
    nnodes: int
    transport: str
    func: str
    size_class: int


@dataclass(frozen=True, slots=True)
class Side:
    """A kind in one job: means and medians over its communicators of that name and shape."""

    communicators: int
    algos: tuple[str, ...]
    count: int  # operations of all these communicators
    time_ns: float
    error_ns: float | None
    bus_gbs: float | None
    waiting_share: float | None
    busy_ns: float


@dataclass(frozen=True, slots=True)
class KindChange:
    """A kind in both jobs.

    `delta` is the relative change of T: 0.1 is a tenth longer. `waiting_delta` is in points of
    share.
    """

    kind: ComparedKind
    a: Side | None
    b: Side | None
    verdict: str
    delta: float | None = None
    waiting_delta: float | None = None  # None: not known, or within noise


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A text or figure of the job that differs in B."""

    field: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Difference:
    """All differences between job A and job B."""

    a: int
    b: int
    same_script: bool | None  # None: not known
    fields: tuple[FieldChange, ...]
    kinds: tuple[KindChange, ...]  # the largest change of time first
    nodes_gone: tuple[str, ...]
    nodes_new: tuple[str, ...]
    nodes_both: int
    notes: tuple[str, ...]


def _side(operations: Sequence[Operations]) -> Side:
    """Return one job's side of a kind; the times of several algorithms are weighted by count."""
    total = sum(one.count for one in operations)
    busy_ns = sum(one.time_ns * one.count for one in operations)
    return Side(
        communicators=len({one.communicator for one in operations}),
        algos=tuple(sorted({algo_family(one.algo_proto) for one in operations} - {""})),
        count=total,
        time_ns=busy_ns / max(total, 1),
        error_ns=middle([one.time_error_ns for one in operations]),
        bus_gbs=middle([one.bus_gbs for one in operations]),
        waiting_share=middle([one.waiting_share for one in operations]),
        busy_ns=busy_ns,
    )


def _sides(card: Card) -> dict[ComparedKind, Side]:
    comms = {comm.id: comm for comm in card.communicators}
    found: dict[ComparedKind, list[Operations]] = defaultdict(list)
    for one in card.operations:
        if (comm := comms.get(one.communicator)) is not None:
            kind = ComparedKind(
                comm.name, comm.nranks, comm.nnodes, comm.transport, one.func, one.size_class
            )
            found[kind].append(one)
    return {kind: _side(its) for kind, its in found.items()}


def _waiting_delta(a: Side, b: Side) -> float | None:
    if a.waiting_share is None or b.waiting_share is None:
        return None
    change = b.waiting_share - a.waiting_share
    return change if abs(change) >= WAITING_MIN else None


def _compare(kind: ComparedKind, a: Side | None, b: Side | None) -> KindChange:
    if a is None or b is None:
        return KindChange(kind, a, b, ONLY_B if a is None else ONLY_A)
    waiting = _waiting_delta(a, b)
    if a.time_ns <= 0 or b.time_ns <= 0:
        return KindChange(kind, a, b, UNKNOWN, None, waiting)
    delta = b.time_ns / a.time_ns - 1
    if abs(delta) < CHANGE_MIN:
        verdict = NOISE
    elif a.error_ns is None or b.error_ns is None:
        verdict = UNKNOWN
    elif abs(b.time_ns - a.time_ns) < ERRORS_MIN * hypot(a.error_ns, b.error_ns):
        verdict = NOISE
    else:
        verdict = SLOWER if delta > 0 else FASTER
    return KindChange(kind, a, b, verdict, delta, waiting)


def _weight(change: KindChange) -> float:
    """Return what a change cost or saved in ns; for a kind in one job only, its whole time."""
    a_ns = change.a.busy_ns if change.a else 0.0
    return abs((change.b.busy_ns if change.b else 0.0) - a_ns)


def _elapsed(card: Card) -> str:
    job = card.job
    if job.start_s is None or job.end_s is None:
        return ""
    return f"{job.end_s - job.start_s:.0f} s"


def _words(card: Card) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of what is compared; a text is empty if it is not known."""
    job, ran = card.job, card.environment
    cause = f" ({card.verdict.cause})" if card.verdict.cause else ""
    yield "verdict", f"{card.verdict.status}{cause}"
    yield "state", job.state
    yield "elapsed", _elapsed(card)
    yield "user", job.user
    yield "partition", job.partition
    yield "name", job.name
    yield "submitted", job.submit_line
    yield "number of nodes", str(job.num_nodes or "")
    yield "ranks", str(card.data_quality.ranks_seen)
    yield "NCCL", ", ".join(ran.nccl)
    yield "plugin", ", ".join(ran.plugin_versions)
    yield "GPU model", ", ".join(ran.gpu_models)
    yield "GPUs", str(ran.gpus or "")
    yield "ports", ", ".join(ran.ports)
    yield "timing", card.data_quality.timing
    yield "switches asked", job.switches_asked
    yield "segment asked", str(job.segment_asked or "")
    yield "switches used", str(len(job.switches_used) or "")


def _notes(a: Card, b: Card, changes: Sequence[KindChange], new: set[str]) -> Iterator[str]:
    for letter, card in (("A", a), ("B", b)):
        if card.data_quality.nodes_missing:
            yield f"{letter} lacks {len(card.data_quality.nodes_missing)} of its nodes"
        if card.data_quality.killed:
            yield f"of {letter} {len(card.data_quality.killed)} processes were killed"
    slower = [one for one in changes if one.verdict == SLOWER]
    if slower and new:
        text, rest = compress_within(new, _NODES_CHARS)
        yield f"B was slower and ran on {text}{f' and {rest} more' if rest else ''}, A did not"
    elif slower:
        yield "B was slower on nodes that A had, too"
    if not any(one.a and one.b for one in changes):
        yield "the jobs have no kind of operation in common"


def _same_script(a: Card, b: Card) -> bool | None:
    if a.job.script and b.job.script:
        return a.job.script == b.job.script
    return None


def compare(a: Card, b: Card, nodes_a: set[str], nodes_b: set[str]) -> Difference:
    """Return how B differs from A; `nodes_a` and `nodes_b` are all nodes of each."""
    of_a, of_b = _sides(a), _sides(b)
    changes = [_compare(kind, of_a.get(kind), of_b.get(kind)) for kind in sorted({*of_a, *of_b})]
    changes.sort(key=lambda one: -_weight(one))
    pairs = zip(_words(a), _words(b), strict=True)
    return Difference(
        a=a.job.job_id,
        b=b.job.job_id,
        same_script=_same_script(a, b),
        fields=tuple(
            FieldChange(name, one or "unknown", other or "unknown")
            for (name, one), (_, other) in pairs
            if one != other
        ),
        kinds=tuple(changes),
        nodes_gone=tuple(sorted(nodes_a - nodes_b)),
        nodes_new=tuple(sorted(nodes_b - nodes_a)),
        nodes_both=len(nodes_a & nodes_b),
        notes=tuple(_notes(a, b, changes, nodes_b - nodes_a)),
    )
