# SPDX-License-Identifier: Apache-2.0
"""Check whether the lines of a job reach its end: there are lines only for completed operations.

A process that ends in order leaves a file `<newest>.log.end`. A process that was killed or hangs
leaves no such file, and the lines of its ranks often end at different operations.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nccl_inspector.capture.contents import Capture, Process
from nccl_inspector.model.wording import cut_list, elapsed
from nccl_inspector.system.printable import visible

_SHOWN = 4
# Unfinished operations are normal just before an exit: NCCL reports an end some time after it.
_EXIT_S = 5.0
_BEHIND_S = 60.0  # because clocks of nodes may differ a little

_LAST = """
select comm, min(comm_name), func, rank, hostname, pid, max(last_sn)
from counted where numbered group by comm, func, rank, hostname, pid order by all
"""
_TIMES = """
select hostname, pid, max(last_us) from counted group by hostname, pid
having max(last_us) is not null order by all
"""


@dataclass(frozen=True, slots=True)
class _RankEnd:
    name: str
    last: int  # number of the last operation, counted from 1


def _apart(found: Sequence[_RankEnd], func: str, comm: str) -> str:
    """Return as text where the lines of some ranks of a communicator end before those of others."""
    most = max(one.last for one in found)
    behind = sorted((one for one in found if one.last < most), key=lambda one: one.last)
    first = [one.name for one in behind if one.last == behind[0].last]
    return (
        f"the lines of {cut_list(first, _SHOWN)} end at {func} {behind[0].last} of {comm}, those "
        f"of {len(found) - len(behind)} others at {most}"
    )


def _differ(capture: Capture, names: Mapping[Process, str]) -> str:
    """Return as text where the lines of ranks of one communicator end differently.

    Empty: they all end at the same operation. Processes that lost lines are not compared.
    """
    ranks: dict[tuple[str, str], list[_RankEnd]] = defaultdict(list)
    called: dict[str, str] = {}
    for comm, comm_name, func, _, host, pid, last in capture.sql.execute(_LAST).fetchall():
        called[comm] = visible(comm if comm_name in (None, "", "unknown") else comm_name)
        if not capture.lost.get((host, pid)):
            ranks[comm, func].append(_RankEnd(names[host, pid], last + 1))
    apart = [
        (len({one.name for one in found}), comm, func, found)
        for (comm, func), found in ranks.items()
        if len({one.last for one in found}) > 1
    ]
    if not apart:
        return ""
    _, comm, func, found = max(apart, key=lambda one: one[:3])
    return _apart(found, visible(func), called[comm])


def _all_or(names: Sequence[str], every: int) -> str:
    return f"all {every} processes" if len(names) == every else cut_list(names, _SHOWN)


def why_unfinished(capture: Capture, names: Mapping[Process, str]) -> str:
    """Return as text why the job may not have ended in order; empty: all processes did.

    `names`: the names of the processes.
    """
    lasts = {(host, pid): us / 1e6 for host, pid, us in capture.sql.execute(_TIMES).fetchall()}
    latest = max(lasts.values(), default=0.0)
    silent, stuck, free, early = [], [], [], []
    idle_s = behind_s = 0.0
    for who, last in lasts.items():
        end = capture.ends.get(who)
        if end is None:
            silent.append(names[who])
            if latest - last >= _BEHIND_S:
                early.append(names[who])
                behind_s = max(behind_s, latest - last)
        elif end.unfinished and end.end_us / 1e6 - last >= _EXIT_S:
            stuck.append(names[who])
            idle_s = max(idle_s, end.end_us / 1e6 - last)
        else:
            free.append(names[who])
    found = [_differ(capture, names)]
    if early:
        found.append(
            f"the lines of {cut_list(early, _SHOWN)} end {elapsed(behind_s)} before others"
        )
    if stuck:
        found.append(
            f"operations were under way when {_all_or(stuck, len(lasts))} ended, "
            f"{elapsed(idle_s)} after the last line"
            + (f" ({cut_list(free, _SHOWN)} had none)" if free else "")
        )
    if silent:
        found.append(
            f"nothing says that {_all_or(silent, len(lasts))} ended in order (no file .log.end)"
        )
    return "; ".join(words for words in found if words)
