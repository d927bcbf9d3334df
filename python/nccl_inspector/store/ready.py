# SPDX-License-Identifier: Apache-2.0
"""What is known of the nodes of an allocation before the job's work begins, and how it is told."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.history.node_score import NodeScore
from nccl_inspector.model.hostlist import compress_within
from nccl_inspector.model.wording import change, elapsed, number
from nccl_inspector.store.suspects import OLD_S, Suspect, SuspectList
from nccl_inspector.system.printable import plain

_NODES_CHARS = 60


@dataclass(frozen=True, slots=True)
class Readiness:
    """The nodes of an allocation that were slow lately; the first two are reasons not to start.

    `suspects`: by the jobs of all users. `own_suspects`: by the caller's own jobs alone.
    `own_named`: no suspects, but a warning was about them in a job of the caller's.
    """

    nodes: int
    suspects: tuple[Suspect, ...]
    own_suspects: tuple[NodeScore, ...]
    own_named: tuple[NodeScore, ...]
    unknown: tuple[str, ...] = ()  # why some of it is not known

    @property
    def is_ready(self) -> bool:
        """Whether no node of the allocation is a suspect."""
        return not self.suspects and not self.own_suspects


def judge_allocation(
    nodes: Collection[str],
    listed: SuspectList | None,
    own: Sequence[NodeScore] | None,
    unknown: Sequence[str],
    now_s: float,
) -> Readiness:
    """Look up the nodes of an allocation. None: not known; an old list is not used."""
    why = list(unknown)
    suspects: tuple[Suspect, ...] = ()
    if listed is not None and now_s - listed.made_s > OLD_S:
        why.append(f"the list of suspects is {elapsed(now_s - listed.made_s)} old")
    elif listed is not None:
        suspects = tuple(one for one in listed.suspects if one.node in nodes)
    told = {one.node for one in suspects}
    mine = [one for one in own or () if one.node in nodes and one.node not in told]
    return Readiness(
        len(nodes),
        suspects,
        tuple(one for one in mine if one.suspect),
        tuple(one for one in mine if one.named and not one.suspect),
        tuple(why),
    )


def _by_all(one: Suspect) -> str:
    said = []
    if one.slow:
        said.append(f"its jobs are slow beside their like ({change(one.depth)} at the median)")
    if one.named:
        said.append(
            f"warnings are about it in {one.named} of {number(one.jobs, 'job')}, "
            f"by {one.named_by} of {number(one.users, 'user')}"
        )
    return f"{one.node}: {'; '.join(said)}"


def _by_own(one: NodeScore) -> str:
    jobs = ", ".join(map(str, one.worst))
    said = []
    if "slow" in one.reasons:
        said.append(f"your jobs are slow on it ({change(one.depth)} at the median; {jobs})")
    if one.named:
        said.append(f"warnings are about it in {one.named} of {number(one.jobs, 'job')} of yours")
    return f"{one.node}: {'; '.join(said)}"


def ready_lines(found: Readiness) -> Iterator[str]:
    """Yield a line for each suspect and a last line that sums up; printable ASCII."""
    for suspect in found.suspects:
        yield plain(f"SLOW LATELY  {_by_all(suspect)}")
    for mine in found.own_suspects:
        yield plain(f"SLOW LATELY  {_by_own(mine)}")
    for mine in found.own_named:
        yield plain(f"seen         {_by_own(mine)}")
    for why in found.unknown:
        yield plain(f"not known    {why}")
    slow = [one.node for one in found.suspects] + [one.node for one in found.own_suspects]
    if slow:
        text, rest = compress_within(slow, _NODES_CHARS)
        more = f" and {rest} more" if rest else ""
        yield plain(f"{len(slow)} of {number(found.nodes, 'node')} were slow lately: {text}{more}")
    elif found.unknown:
        yield f"{number(found.nodes, 'node')}: nothing is known against them"
    else:
        yield f"{number(found.nodes, 'node')}: none was slow lately"
