# SPDX-License-Identifier: Apache-2.0
"""A report card held against what is true of its job."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nccl_inspector.model import rules
from nccl_inspector.model.card import CRITICAL, INFO, UNKNOWN, WARNING, Card, Entity, Finding
from tests.simulator import truth
from tests.simulator.truth import Name, Truth

# What a finding accuses; others, such as `victim`, `communicator` and `job`, are no culprits.
CULPRITS = frozenset({"rank", "node", "gpu", "port", "nic", "rail", "pair", "link", "nvlink"})
# Rules of findings that are about the measurement. Who died first is accused, as by any other.
ABOUT_DATA = rules.ids_about(rules.About.DATA) | {rules.SLOWER_THAN_SIMILAR.id}
HARDWARE = rules.ids_about(rules.About.HARDWARE)

COST_ERROR_MAX, COST_SHARE_ERROR_MAX = 0.2, 0.005
INFORMATION_BELOW = 0.01  # of the wall time
TIME_ERROR_MAX = 0.05
PART_MAX, OVERLAP_MIN = 0.8, 0.5
_KINDS_OF_TIMES = 3  # the busiest
_COUNT_MIN = 30

_BY_UUID = re.compile(r" GPU-[0-9a-f]{8}$")
_RANK = re.compile(r"\brank (\d+)")
_NUMBER = re.compile(r"(\d+)\D*$")


@dataclass
class Grade:
    """What was right. `None`: the question does not arise."""

    status: str
    cause: str
    status_right: bool
    accused: list[str] = field(default_factory=list)  # who is innocent
    class_right: bool | None = None
    entity_right: bool | None = None
    severity_right: bool | None = None
    late_by_told: bool | None = None  # of who is rightly said to be late: is it by host or GPU?
    late_by_right: bool | None = None  # if that is told
    period_right: bool | None = None
    cost_told: float | None = None  # share of the wall time
    cost_true: float = 0.0
    cost_right: bool | None = None
    time_errors: list[float] = field(default_factory=list)  # of T, fractions
    times_unknown: int = 0
    findings: list[str] = field(default_factory=list)


def plain(entity: Entity) -> Name:
    """Return an entity as `Truth` has it."""
    kind, name = entity.kind, entity.name
    if kind == "rank" and (match := _RANK.search(name)):
        return kind, f"rank {match[1]}"
    if kind == "rail" and (match := _NUMBER.search(name)):
        return kind, match[1]
    if kind in ("port", "nic"):
        return "port", name.removesuffix("/1")
    return kind, name


def _without_port_numbers(names: Iterable[Name]) -> frozenset[Name]:
    return frozenset((kind, name.removesuffix("/1")) for kind, name in names)


def accusing(card: Card) -> Iterator[Finding]:
    """Return the findings that say that something is wrong."""
    for one in card.findings:
        if one.severity in (WARNING, CRITICAL) and one.rule not in ABOUT_DATA:
            yield one


def _culprits(finding: Finding) -> list[Name]:
    return [plain(one) for one in finding.entities if one.kind in CULPRITS]


def _innocents(card: Card, true: Truth) -> list[str]:
    known = _without_port_numbers(true.guilty | true.related)
    noted = known | _without_port_numbers(true.noted)
    found = []
    for finding in accusing(card):
        allowed = noted if finding.rule in HARDWARE else known
        for kind, name in _culprits(finding):
            # JSON lines know a GPU by its UUID only: it is the GPU of the rank beside it.
            if kind == "gpu" and _BY_UUID.search(name):
                continue
            parts = {("node", part) for part in name.split(" - ")} if kind == "pair" else set()
            if (kind, name) not in allowed and not parts & known:
                words = name if kind in ("rank", "gpu") else f"{kind} {name}"
                found.append(f"{words} ({finding.rule})")
    return found


def _names_guilty(finding: Finding, true: Truth) -> bool:
    guilty = _without_port_numbers(true.guilty)
    return any(name in guilty for name in _culprits(finding))


def _cost(card: Card, true: Truth) -> float | None:
    """Return what the card says that the fault cost, as a share of the wall time."""
    if card.verdict.cost_s is not None:
        return card.verdict.cost_s / true.wall_s
    told = [
        float(cost)
        for one in card.findings
        if _names_guilty(one, true) or getattr(one, "cause", "") in true.causes - {""}
        if (cost := getattr(one, "cost_s", None)) is not None
    ]
    return sum(told) / true.wall_s if told else None


def _time_errors(card: Card, true: Truth, grade: Grade) -> None:
    """Compare T of the busiest kinds of operations."""
    known = []
    for one in card.operations:
        key = int(one.communicator, 16), one.func, one.size_class
        if key in true.transfer and true.transfer[key][1] >= _COUNT_MIN:
            time_ns, count = true.transfer[key]
            known.append((time_ns * count, one, time_ns))
    known.sort(key=lambda row: -row[0])
    for _, one, time_ns in known[:_KINDS_OF_TIMES]:
        if one.waiting_included:
            grade.times_unknown += 1
        else:
            grade.time_errors.append(one.time_ns / time_ns - 1)


def _judge_cost(card: Card, true: Truth, grade: Grade) -> None:
    grade.cost_true = true.cost_share
    grade.cost_told = _cost(card, true)
    if grade.cost_told is None:
        grade.cost_right = False
        return
    error = abs(grade.cost_told - true.cost_share)
    most = max(COST_ERROR_MAX * true.cost_share, COST_SHARE_ERROR_MAX)
    grade.cost_right = error <= most


def _overlap(told: tuple[float, float], true: tuple[float, float]) -> float:
    """Return the share that two periods have in common of what both cover."""
    both = min(told[1], true[1]) - max(told[0], true[0])
    return max(0.0, both) / (max(told[1], true[1]) - min(told[0], true[0]))


def _judge_period(card: Card, true: Truth, grade: Grade, named: list[Finding]) -> None:
    """Look whether somebody says when it was, if it was not all the time."""
    if true.period is None or true.period[1] - true.period[0] > PART_MAX * true.wall_s:
        return
    start_s = card.job.start_s or 0.0
    told = [one.period for one in named or accusing(card) if one.period is not None]
    overlaps = [_overlap((p.start_s - start_s, p.end_s - start_s), true.period) for p in told]
    grade.period_right = max(overlaps, default=0.0) >= OVERLAP_MIN


def _judge_late_by(card: Card, true: Truth, grade: Grade) -> None:
    ours = {name for _, name in true.guilty | true.related}
    told = {one.kind for one in card.stragglers if one.rank in ours}
    if not true.late_by or not told:
        return
    grade.late_by_told = told != {UNKNOWN}
    if grade.late_by_told:
        grade.late_by_right = told - {UNKNOWN} == {true.late_by}


def _judge_fault(card: Card, true: Truth, grade: Grade) -> None:
    if 0 < true.cost_share < INFORMATION_BELOW and card.verdict.status == truth.HEALTHY:
        grade.status_right = True
        _judge_cost(card, true, grade)
        return
    named = [one for one in accusing(card) if _names_guilty(one, true)]
    if true.nameable:
        grade.entity_right = bool(named)
    if true.statuses & {truth.HUNG, truth.PERHAPS_HUNG, truth.CRASHED, truth.FAILED}:
        grade.class_right = card.verdict.status in true.statuses
        return
    if card.verdict.status == truth.CANNOT_TELL and grade.status_right:
        return  # what it does not tell cannot be wrong
    grade.class_right = card.verdict.cause in true.causes
    if true.nameable and named:
        worst = max((one.severity for one in named), key=[INFO, WARNING, CRITICAL].index)
        small = true.cost_share < INFORMATION_BELOW
        grade.severity_right = (worst == INFO) == small
    _judge_period(card, true, grade, named)
    _judge_cost(card, true, grade)


def grade(card: Card, true: Truth) -> Grade:
    """Return what is right and wrong about the card."""
    found = Grade(card.verdict.status, card.verdict.cause, card.verdict.status in true.statuses)
    found.accused = _innocents(card, true)
    found.findings = [
        f"{one.severity} {one.rule}: {one.title}" for one in card.findings if one.severity != INFO
    ]
    if true.healthy:
        if card.verdict.status not in true.statuses:
            found.accused.append(f"verdict {card.verdict.status} {card.verdict.cause}".rstrip())
        found.cost_told = _cost(card, true) or 0.0
        if true.cost_share >= INFORMATION_BELOW:  # it may be the program's own doing
            _judge_cost(card, true, found)
    else:
        _judge_fault(card, true, found)
        _judge_late_by(card, true, found)
    _time_errors(card, true, found)
    return found
