# SPDX-License-Identifier: Apache-2.0
"""Join the summaries of one attempt of a job: its communicators, and what is missing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nccl_inspector.analysis.coverage import Coverage, find_coverage
from nccl_inspector.analysis.dumps import Dumped, find_dumps
from nccl_inspector.analysis.hardware.links import SampledNodes, find_links
from nccl_inspector.analysis.join import JoinedComm, join_communicators
from nccl_inspector.analysis.process_names import name_processes
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.model.process import KILLED, RUNNING, Process
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import Head, NodeSummary


@dataclass(frozen=True, slots=True)
class Report:
    """One attempt of one job; of a heterogeneous job, all components that were measured."""

    head: Head  # of the first component
    array_task: str  # `810_3`, from the processes; empty if it is no array task
    nodelists: dict[int, str]  # of each component, by its job id
    attempts: tuple[int, ...]  # all attempts that have summaries
    nodes: tuple[str, ...]  # those with a summary
    nodes_missing: dict[int, tuple[str, ...]]  # by component; complete components are left out
    processes: int
    steps: int
    communicators: tuple[JoinedComm, ...]
    killed: tuple[str, ...]  # processes that died without finalizing, as text
    coverage: Coverage
    links: SampledNodes | None  # where links and GPUs were sampled; None: not known
    dumps: Dumped | None  # what NVIDIA's plugin wrote; None: nothing
    problems: tuple[str, ...]  # what else makes the figures incomplete, as text
    names: tuple[str, ...]  # of the processes, in the order of the summaries


def _missing_nodes(summaries: Sequence[NodeSummary], problems: list[str]) -> tuple[str, ...]:
    """Return the nodes of one component that have no summary."""
    present = {summary.head.node for summary in summaries}
    try:
        nodes = expand(summaries[0].head.nodelist)
    except InspectorError as err:
        problems.append(f"{err}; nodes without a summary are not known")
        return ()
    return tuple(node for node in nodes if node not in present)


def _in_state(
    processes: Sequence[tuple[str, Process]], places: Sequence[str], state: str
) -> Iterator[str]:
    for (_, process), place in zip(processes, places, strict=True):
        if process.facts.state == state:
            yield place


def build_report(loaded: Loaded) -> Report:
    """Join the summaries of one attempt into a report."""
    summaries, problems = loaded.summaries, list(loaded.problems)
    for summary in summaries:
        problems += [f"{summary.head.node}: {problem}" for problem in summary.head.problems]
        for process in summary.processes:
            problems += [
                f"{summary.head.node}, process {process.facts.name}: {flag}"
                for flag in process.flags
            ]
    processes = [
        (summary.head.node, process) for summary in summaries for process in summary.processes
    ]
    names = name_processes(
        [(summary.head.job_id, one) for summary in summaries for one in summary.processes]
    )
    places = [f"{name} ({node})" for (node, _), name in zip(processes, names, strict=True)]
    problems += [
        f"{words} was still running when its box was read"
        for words in _in_state(processes, places, RUNNING)
    ]
    communicators = join_communicators(processes, names)
    components: dict[int, list[NodeSummary]] = {}
    for summary in summaries:
        components.setdefault(summary.head.job_id, []).append(summary)
    missing = {job: _missing_nodes(found, problems) for job, found in components.items()}
    return Report(
        head=loaded.head,
        array_task=loaded.head.array_task,
        nodelists={job: found[0].head.nodelist for job, found in components.items()},
        attempts=loaded.attempts,
        nodes=tuple(dict.fromkeys(summary.head.node for summary in summaries)),
        nodes_missing={job: nodes for job, nodes in missing.items() if nodes},
        processes=len(processes),
        steps=len({process.facts.step for _, process in processes}),
        communicators=tuple(communicators),
        killed=tuple(_in_state(processes, places, KILLED)),
        coverage=find_coverage([process for _, process in processes], places),
        links=find_links(summaries),
        dumps=find_dumps(summaries),
        problems=tuple(dict.fromkeys(problems)),
        names=tuple(names),
    )
