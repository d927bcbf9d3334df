# SPDX-License-Identifier: Apache-2.0
"""Where the processes, GPUs and ports of a job are, for a reader who wants to go there.

Findings name their entities only by kind and name (model.card.Entity). `Places.find` adds the rest,
so that every finding tells node, GPU, UUID, PCI address and process id in the same way.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nccl_inspector.counters.node_counters import NodeCounters
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


@dataclass(frozen=True, slots=True)
class _Devices:
    """The GPUs of a node by label, and its ports by name."""

    gpus: Mapping[str, Entity]
    ports: Mapping[str, Entity]

    @classmethod
    def of(
        cls, node: str, counters: NodeCounters | None, processes: Iterable[Process]
    ) -> "_Devices":
        """Return what the counters and the boxes of a node tell.

        The agent's data, which are from the driver, have priority over a box's.
        """
        counters = counters or NodeCounters()
        facts = {
            name: {device: changes[-1].text for device, changes in counters.facts_of("gpu", name)}
            for name in ("uuid", "pci")
        }
        known = [
            (label, facts["uuid"].get(label, ""), facts["pci"].get(label, ""))
            for table in counters.tables_of("gpu")
            for label in table.names
        ]
        known += [
            (gpu.label, gpu.uuid, pci_address(gpu.pci_bus_id))
            for process in processes
            for gpu in process.gpus
        ]
        gpus: dict[str, Entity] = {}
        for label, uuid, pci in known:
            if label != _UNKNOWN_GPU:
                before = gpus.get(label) or Entity("gpu", f"{node} {label}", node=node, gpu=label)
                gpus[label] = replace(
                    before,
                    gpu_uuid=before.gpu_uuid or uuid,
                    pci_bus_id=before.pci_bus_id or pci,
                )
        ports = {
            port: Entity("port", f"{node} {port}", node=node, port=port)
            for table in counters.tables_of("port")
            for port in table.names
        }
        return cls(gpus, ports)


class Places:
    """The places of one job's entities."""

    def __init__(
        self,
        processes: Sequence[tuple[str, Process]],
        names: Sequence[str],
        counters: Mapping[str, NodeCounters | None],
    ) -> None:
        """Take the processes with their nodes, their names, and the counters of each node."""
        self._processes, self._counters = processes, counters
        self._at = {name: at for at, name in enumerate(names)}
        self._on_node: dict[str, list[str]] = defaultdict(list)
        for (node, _), name in zip(processes, names, strict=True):
            self._on_node[node].append(name)
        # Made when they are asked for: a large job has ten thousands, and few are told.
        self._devices_of: dict[str, _Devices] = {}

    def _devices(self, node: str) -> "_Devices":
        """Return the GPUs and ports of a node by name."""
        found = self._devices_of.get(node)
        if found is None:
            processes = [self._processes[self._at[name]][1] for name in self._on_node.get(node, ())]
            found = _Devices.of(node, self._counters.get(node), processes)
            self._devices_of[node] = found
        return found

    def _rank(self, name: str) -> Entity:
        node, process = self._processes[self._at[name]]
        gpu = gpu_of(process)
        entity = Entity(
            "rank", name, node=node, pid=process.facts.pid or None, procid=process.facts.procid
        )
        if gpu is None:
            return entity
        known = self._devices(node).gpus.get(gpu.label)
        return replace(
            entity,
            gpu="" if gpu.label == _UNKNOWN_GPU else gpu.label,
            gpu_uuid=(known.gpu_uuid if known else "") or gpu.uuid,
            pci_bus_id=(known.pci_bus_id if known else "") or pci_address(gpu.pci_bus_id),
        )

    def rank(self, name: str) -> Entity:
        """Return the entity of a process by its name in the report (analysis/process_names.py)."""
        return self._rank(name) if name in self._at else Entity("rank", name)

    def gpu(self, node: str, label: str) -> Entity:
        """Return the entity of a GPU of a node by its label, such as `GPU7`."""
        known = self._devices(node).gpus.get(label)
        return known or Entity("gpu", f"{node} {label}", node=node)

    def on_node(self, node: str) -> tuple[Entity, ...]:
        """Return the entities of the processes on a node."""
        return tuple(map(self._rank, self._on_node.get(node, ())))

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
        devices = self._devices(node)
        if kind == "port":
            known = devices.ports.get(device)
        else:
            known = devices.gpus.get(device.partition(" ")[0])
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
