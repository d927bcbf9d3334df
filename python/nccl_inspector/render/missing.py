# SPDX-License-Identifier: Apache-2.0
"""What a card is based on, and lines about missing data: lost nodes and ranks, dropped events."""

from collections.abc import Iterator, Sequence

from nccl_inspector.model.card import Card, Gap
from nccl_inspector.model.wording import cut_list, node_list, number
from nccl_inspector.render.output_limits import Limits


def _lost(nodes: Sequence[str], whose: str, limits: Limits) -> str:
    listed = node_list(nodes, limits.node_chars)
    return f"no summary of {number(len(nodes), 'node')}{whose}: {listed}"


def _nodes(card: Card, limits: Limits) -> Iterator[str]:
    of_components = [one for one in card.job.components if one.nodes_missing]
    for one in of_components:
        yield _lost(one.nodes_missing, f" of job {one.job_id}", limits)
    if card.data_quality.nodes_missing and not of_components:
        yield _lost(card.data_quality.nodes_missing, "", limits)
    if card.job.het_components:
        # Slurm tells a node the leader's id, but not how many components there are.
        ids = cut_list(map(str, card.job.het_components), limits.names)
        have = "has" if len(card.job.het_components) == 1 else "have"
        yield (
            f"other components of the het job, if there were any: only {ids} {have} measurements "
            "in this report"
        )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items())


def _gap(gap: Gap, processes: int, limits: Limits) -> str:
    if not gap.names:
        return gap.words
    if gap.kind == "process" and len(gap.names) == processes > 1:
        return f"{gap.words}: all {processes:,} processes"
    return f"{gap.words}: {cut_list(gap.names, limits.names)}"


def source_words(card: Card) -> str:
    """Return the card's inputs, and those that were absent, as text; empty: not known."""
    inputs = card.data_quality.inputs
    there = [
        f"{one.source} (in part{f': {one.detail}' if one.detail else ''})"
        if one.state == "partial"
        else one.source
        for one in inputs
        if one.state != "absent"
    ]
    absent = [
        f"{one.source} ({one.detail})" if one.detail else one.source
        for one in inputs
        if one.state == "absent"
    ]
    said = [", ".join(there), f"not there: {', '.join(absent)}" if absent else ""]
    return "; ".join(one for one in said if one)


def missing_lines(card: Card, limits: Limits) -> list[str]:
    """Return a line for everything that is missing or invalid."""
    quality = card.data_quality
    lines = list(_nodes(card, limits))
    if quality.ranks_expected is not None and quality.ranks_seen < quality.ranks_expected:
        lost = quality.ranks_expected - quality.ranks_seen
        lines.append(f"no data of {lost:,} of {number(quality.ranks_expected, 'rank')}")
    if quality.killed:
        who = cut_list(quality.killed, limits.names)
        lines.append(f"did not end in order, data up to the last event: {who}")
    if quality.dropped:
        lines.append(f"events that were not measured: {_counts(quality.dropped)}")
    if quality.refused:
        lines.append(f"records that could not be read: {_counts(quality.refused)}")
    # Gaps of nodes are about counters, and are shown in the section of these.
    lines += [_gap(gap, quality.ranks_seen, limits) for gap in quality.gaps if gap.kind != "node"]
    lines += quality.missing[: limits.lines]
    if len(quality.missing) > limits.lines:
        lines.append(limits.more(number(len(quality.missing) - limits.lines, "line")))
    return lines
