# SPDX-License-Identifier: Apache-2.0
"""A node's score over jobs (slow_nodes.py), for `ready`, which must do without numpy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeScore:
    """A node's score over all jobs that were looked at."""

    node: str
    jobs: int  # that ran on it
    compared: int  # of these, those that could be compared with others
    named: int  # of these, those with a warning about the node
    depth: float | None  # median bandwidth compared with others, as a fraction: -0.15
    z: float | None
    suspect: bool
    reasons: tuple[str, ...]  # why: slow, named
    worst: tuple[int, ...]  # ids of the jobs with its lowest scores
    with_it: tuple[str, ...]  # nodes that cannot be told apart from it
    users: int = 0  # users who ran these jobs
    named_by: int = 0  # users whose jobs had a warning about the node
