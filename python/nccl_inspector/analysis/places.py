# SPDX-License-Identifier: Apache-2.0
"""Where the processes, GPUs and ports of a job are, for a reader who wants to go there.

Findings name their entities only by kind and name (model.card.Entity). `Places.find` adds the rest,
so that every finding tells node, GPU, UUID, PCI address and process id in the same way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nccl_inspector.counters.node_counters import DeviceCounters, NodeCounters
from nccl_inspector.counters.pci import pci_address
from nccl_inspector.model.card import Entity, Finding
from nccl_inspector.model.process import COMM_FOLDED, Gpu, Process

_UNKNOWN_GPU = "unknown"


def gpu_of(process: Process) -> Gpu | None:
    """Return the GPU of a process; if it uses several, that of its largest communicator."""
    comms = [one for one in process.comms if one.gpu is not None and one.gpu < len(process.gpus)]
    if comms:
        live = [one for one in comms if one.state != COMM_FOLDED] or comms
        index = max(live, key=lambda one: one.nranks).gpu or 0
        return process.gpus[index]
    return process.gpus[0] if len(process.gpus) == 1 else None


def _fact(device: DeviceCounters, name: str) -> str:
    changes = device.facts.get(name, ())
    return changes[-1].text if changes else ""


class Places:
    """The places of one job's entities."""

    def __init__(
        self,
        processes: Sequence[tuple[str, Process]],
        names: Sequence[str],
        counters: Mapping[str, NodeCounters | None],
    ) -> None:
        """Take the processes with their nodes, their names, and the counters of each node."""
        self._gpus: dict[tuple[str, str], Entity] = {}
        self._ports: dict[tuple[str, str], Entity] = {}
        self._ranks: dict[str, Entity] = {}
        for node, found in counters.items():
            for one in found.of_kind("gpu") if found else ():
                self._add_gpu(node, one.name, _fact(one, "uuid"), _fact(one, "pci"))
            for port in found.of_kind("port") if found else ():
                name = f"{node} {port.name}"
                self._ports[node, port.name] = Entity("port", name, node=node, port=port.name)
        for (node, process), name in zip(processes, names, strict=True):
            for gpu in process.gpus:
                self._add_gpu(node, gpu.label, gpu.uuid, pci_address(gpu.pci_bus_id))
            self._ranks[name] = self._rank(node, process, name)

    def _add_gpu(self, node: str, label: str, uuid: str, pci: str) -> None:
        """Keep a GPU; the agent's data from the driver have priority over a box's."""
        if label == _UNKNOWN_GPU:
            return
        known = self._gpus.get((node, label))
        self._gpus[node, label] = Entity(
            "gpu", f"{node} {label}", node=node, gpu=label,
            gpu_uuid=(known.gpu_uuid if known else "") or uuid,
            pci_bus_id=(known.pci_bus_id if known else "") or pci,
        )  # fmt: skip

    def _rank(self, node: str, process: Process, name: str) -> Entity:
        gpu = gpu_of(process)
        entity = Entity(
            "rank", name, node=node, pid=process.facts.pid or None, procid=process.facts.procid
        )
        if gpu is None:
            return entity
        known = self._gpus.get((node, gpu.label))
        return replace(
            entity,
            gpu="" if gpu.label == _UNKNOWN_GPU else gpu.label,
            gpu_uuid=(known.gpu_uuid if known else "") or gpu.uuid,
            pci_bus_id=(known.pci_bus_id if known else "") or pci_address(gpu.pci_bus_id),
        )

    def rank(self, name: str) -> Entity:
        """Return the entity of a process by its name in the report (analysis/process_names.py)."""
        return self._ranks.get(name) or Entity("rank", name)

    def gpu(self, node: str, label: str) -> Entity:
        """Return the entity of a GPU of a node by its label, such as `GPU7`."""
        return self._gpus.get((node, label)) or Entity("gpu", f"{node} {label}", node=node)

    def on_node(self, node: str) -> tuple[Entity, ...]:
        """Return the entities of the processes on a node."""
        return tuple(one for one in self._ranks.values() if one.node == node)

    def find(self, entity: Entity) -> Entity:
        """Return the entity with everything known about its place; fields that are set stay."""
        if entity.kind == "rank":
            known = self.rank(entity.name)
        elif entity.kind in ("gpu", "port"):
            node, _, device = entity.name.partition(" ")
            known = self._device(entity.kind, node, device)
        elif entity.kind == "node":
            known = Entity("node", entity.name, node=entity.name)
        else:
            return entity
        return replace(
            entity,
            node=entity.node or known.node,
            gpu=entity.gpu or known.gpu,
            gpu_uuid=entity.gpu_uuid or known.gpu_uuid,
            pci_bus_id=entity.pci_bus_id or known.pci_bus_id,
            pid=known.pid if entity.pid is None else entity.pid,
            procid=known.procid if entity.procid is None else entity.procid,
            port=entity.port or known.port,
        )

    def _device(self, kind: str, node: str, device: str) -> Entity:
        """Return a GPU or port; for an NVLink (`GPU0 NVLink 17`) its GPU."""
        if kind == "port":
            known = self._ports.get((node, device))
        else:
            known = self._gpus.get((node, device.partition(" ")[0]))
        return known or Entity(kind, f"{node} {device}".rstrip())

    def locate(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings with the places of their entities and victims."""
        return [
            replace(
                one,
                entities=tuple(map(self.find, one.entities)),
                victims=tuple(map(self.find, one.victims)),
            )
            for one in findings
        ]
