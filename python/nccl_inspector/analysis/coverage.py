# SPDX-License-Identifier: Apache-2.0
"""What was not measured, or only partly: operations without a time, other clocks, silent times."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nccl_inspector.model.process import (
    CPU_TIMED,
    DENIED,
    DISABLED,
    DROP_REASONS,
    DROPS_IN_PART,
    FUNCS,
    NEVER_MEASURED,
    RCCL,
    UNTIMED,
    Process,
)

# Names of processes by their NCCL version, as text.
ByNccl = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Spell:
    """The processes to which something happened for a time; `longest_ns` is the longest one."""

    names: tuple[str, ...]
    longest_ns: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The figures of all processes of a report together."""

    untimed: dict[str, tuple[int, int]]  # operations and bytes by function, most operations first
    counted_only: ByNccl
    cpu_timed: ByNccl
    denied: ByNccl
    rccl: ByNccl
    disabled: Spell  # while the kill switch was on
    sampled: Spell  # while not all operations were timed
    sampling: int  # at the end, one operation in this many was timed
    dropped: dict[str, int]  # events that were not measured, by reason
    in_part: dict[str, int]  # what is missing from some tables, by reason
    json_lines: int


def _untimed(processes: Iterable[Process]) -> dict[str, tuple[int, int]]:
    ops: Counter[str] = Counter()
    size_bytes: Counter[str] = Counter()
    for process in processes:
        for key in process.keys:
            if key.untimed_ops:
                ops[FUNCS[key.func]] += key.untimed_ops
                size_bytes[FUNCS[key.func]] += key.untimed_bytes
    return {func: (count, size_bytes[func]) for func, count in ops.most_common()}


def _by_nccl(named: Iterable[tuple[str, Process]]) -> ByNccl:
    found: dict[str, list[str]] = defaultdict(list)
    for name, process in named:
        found[process.facts.nccl].append(name)
    return {nccl: tuple(names) for nccl, names in found.items()}


def _spell(spent: Iterable[tuple[str, int, bool]]) -> Spell:
    """Return one Spell of (name, time, whether it lasts); a time that still lasts may be 0."""
    found = [(name, ns) for name, ns, lasts in spent if ns or lasts]
    return Spell(tuple(name for name, _ in found), max((ns for _, ns in found), default=0))


def find_coverage(processes: Sequence[Process], names: Sequence[str]) -> Coverage:
    """Return the coverage of the processes; `names` has the name of each."""
    named = list(zip(names, processes, strict=True))
    drops: Counter[str] = Counter()
    for process in processes:
        drops.update(dict(zip(DROP_REASONS, process.dropped, strict=False)))
    counts = {reason: count for reason, count in drops.items() if count}
    # The list of versions is read only once, so those processes were silent from the start. The
    # kill switch comes and goes.
    others = [(name, one) for name, one in named if one.facts.silent not in NEVER_MEASURED]
    return Coverage(
        untimed=_untimed(processes),
        counted_only=_by_nccl((name, one) for name, one in named if one.facts.timing == UNTIMED),
        cpu_timed=_by_nccl((name, one) for name, one in named if one.facts.timing == CPU_TIMED),
        denied=_by_nccl((name, one) for name, one in named if one.facts.silent == DENIED),
        rccl=_by_nccl((name, one) for name, one in named if one.facts.silent == RCCL),
        disabled=_spell(
            (name, one.facts.silent_ns, one.facts.silent == DISABLED) for name, one in others
        ),
        sampled=_spell((name, one.facts.sampled_ns, one.facts.sampling > 1) for name, one in named),
        sampling=max((one.facts.sampling for one in processes), default=1),
        dropped={reason: n for reason, n in counts.items() if reason not in DROPS_IN_PART},
        in_part={reason: n for reason, n in counts.items() if reason in DROPS_IN_PART},
        json_lines=sum(one.facts.json_lines for one in processes),
    )
