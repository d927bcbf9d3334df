# SPDX-License-Identifier: Apache-2.0
"""Find the leaf switch or block of each node, from `scontrol show topology`.

Other topologies (rings, tori) have neither: where a node is in them is not told.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.slurm.command import ask

_LEAF = re.compile(r"SwitchName=(\S+) Level=0 .*?Nodes=(\S+)")
_TOPOLOGY = re.compile(r"\bTopology=(\S+)")
_BLOCK = re.compile(r"BlockName=(\S+) .*?Nodes=(\S+)")


def read_places(output: str) -> dict[str, str]:
    """Return the leaf switch or block of each node; higher levels are ignored.

    Raises:
        InspectorError: a node list in the output is invalid.
    """
    places: dict[str, str] = {}
    for line in output.splitlines():
        match = _LEAF.match(line) or _BLOCK.match(line)
        if match:
            places |= dict.fromkeys(expand(match[2]), match[1])
    return places


def _topology_of(scontrol: Path, partition: str) -> list[str]:
    """Return the topology that a partition names (seen on Slurm 26.05); empty: the default one."""
    if not partition:
        return []
    match = _TOPOLOGY.search(ask(scontrol, "--oneliner", "show", "partition", partition).output)
    return [match[1]] if match and match[1] != "(null)" else []


def ask_places(scontrol: Path, partition: str = "") -> tuple[dict[str, str], str]:
    """Return the leaf switch or block of each node of the cluster; without any, also why.

    A cluster may have several topologies. `partition`: of the job, because each may have another.
    """
    said = ask(scontrol, "show", "topology", *_topology_of(scontrol, partition))
    if said.status != 0:
        return {}, said.words
    try:
        places = read_places(said.output)
    except InspectorError as err:
        return {}, str(err)
    return places, "" if places else "Slurm knows of no switches or blocks"


def used(places: Mapping[str, str], nodes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the nodes at each leaf switch or block; the empty name has the nodes at none."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(places.get(node, ""), []).append(node)
    return {place: tuple(at) for place, at in sorted(found.items())}
