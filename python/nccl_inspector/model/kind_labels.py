# SPDX-License-Identifier: Apache-2.0
"""Communicators and kinds of operation, from the labels of our series or of NVIDIA's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nccl_inspector.model.bandwidth import UNITS, size_class
from nccl_inspector.model.transport import transport_by_shape
from nccl_inspector.system.checked_json import TEXT_CHARS_MAX
from nccl_inspector.system.printable import visible

SIZE_CLASS_MAX = 63
# A number of ranks or nodes: as text, and as a number.
_WHOLE = re.compile("[0-9]{1,9}")
WHOLE_MAX = 10**9 - 1
_SIZE = re.compile(rf"([0-9]{{1,9}})-[0-9]{{1,9}}({'|'.join(UNITS)})")


@dataclass(frozen=True, slots=True, order=True)
class LabelledComm:
    """A communicator by its labels; `id` is empty if NVIDIA's plugin measured."""

    id: str
    name: str
    nranks: int
    nnodes: int

    @property
    def shown(self) -> str:
        """The communicator's name in the card."""
        return self.id or f"{self.name or 'unknown'} ({self.nranks} ranks, {self.nnodes} nodes)"

    @property
    def transport(self) -> str:
        """The transport class, as far as the shape decides it."""
        return transport_by_shape(self.nranks, self.nnodes)


@dataclass(frozen=True, slots=True, order=True)
class LabelledKind:
    """A kind of operation of a communicator."""

    comm: LabelledComm
    func: str
    size_class: int
    algo_proto: str


def size_class_of(label: str) -> int | None:
    """Return the class of a label `message_size`, ours or NVIDIA's; None: the label is invalid."""
    match = _SIZE.fullmatch(label)
    if not match:
        return None
    found = size_class(int(match[1]) << (10 * UNITS.index(match[2])))
    return found if found <= SIZE_CLASS_MAX else None


def comm_of(labels: Mapping[str, str]) -> LabelledComm | None:
    """Return the communicator; None: the labels are neither ours nor NVIDIA's."""
    sizes = labels.get("nranks", ""), labels.get("n_nodes", "")
    if not all(map(_WHOLE.fullmatch, sizes)):
        return None
    id_, name = (visible(labels.get(one, ""))[:TEXT_CHARS_MAX] for one in ("comm", "comm_name"))
    return LabelledComm(id_, name, int(sizes[0]), int(sizes[1]))


def kind_of(labels: Mapping[str, str], func_label: str) -> LabelledKind | None:
    """Return the kind; None: the labels are neither ours nor NVIDIA's."""
    comm, size = comm_of(labels), size_class_of(labels.get("message_size", ""))
    func = visible(labels.get(func_label, ""))[:TEXT_CHARS_MAX]
    if comm is None or size is None or not func:
        return None
    return LabelledKind(comm, func, size, visible(labels.get("algo_proto", ""))[:TEXT_CHARS_MAX])
