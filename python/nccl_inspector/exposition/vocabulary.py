# SPDX-License-Identifier: Apache-2.0
"""The values that the labels of a job's series may have.

A job's user writes these labels. A value that neither our plugin nor NVIDIA's can have written
becomes `other`, so that the number of different values is bounded.
"""

import re
from functools import lru_cache

from nccl_inspector.model.bandwidth import UNITS, size_label
from nccl_inspector.model.kind_labels import SIZE_CLASS_MAX
from nccl_inspector.model.process import ALGOS, DROP_REASONS, FUNCS, PROTOS

OTHER = "other"
# How many different names of communicators a job may have on a node; more become `other`.
COMM_NAMES_MAX = 128
LABEL_VALUES_MAX = 64  # the same for tags and kernels

NET_STATES = ("gpu", "peer", "wire", "flush")
DIRECTIONS = ("send", "receive")
LABELS = ("user_tag", "kernel")

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_NUMBER = "-?[0-9]{1,9}"
_PATTERNS = {
    label: re.compile(pattern)
    for label, pattern in {
        "version": r"v[0-9]{1,2}\.[0-9]{1,2}",
        "gpu": f"GPU[0-9]{{1,4}}|GPU-[0-9a-f]{{8}}|(?:GPU|MIG)-{_UUID}|unknown",
        "gpu_uuid": f"(?:GPU|MIG)-{_UUID}|unknown",
        "pci_bus_id": r"[0-9a-f?]{4,8}:[0-9a-f?]{2}:[0-9a-f?]{2}\.[0-9a-f?]|unknown|",
        "rank": f"{_NUMBER}|",  # NVIDIA's plugin tells neither rank nor communicator
        "comm": "0x[0-9a-f]{1,16}|",
        "peer": _NUMBER,
        "nranks": _NUMBER,
        "n_nodes": _NUMBER,
        "root": "[0-9]{1,9}",
    }.items()
}
_WORDS = {
    "collective": frozenset(FUNCS),
    "p2p_operation": frozenset(FUNCS),
    "algo_proto": frozenset(f"{algo}_{proto}" for algo in ALGOS for proto in PROTOS)
    | {"GROUP", "CE"},
    "reason": frozenset(DROP_REASONS),
    "state": frozenset(NET_STATES),
    "direction": frozenset(DIRECTIONS),
    "label": frozenset(LABELS),
}
_SIZE_CLASSES = frozenset(size_label(class_) for class_ in range(SIZE_CLASS_MAX + 1))
# NVIDIA's size classes: from one whole number of a unit to the next.
_LINEAR_SIZE = re.compile(rf"([0-9]{{1,4}})-([0-9]{{1,4}})(?:{'|'.join(UNITS)})")


def _is_size(value: str) -> bool:
    if value in _SIZE_CLASSES:
        return True
    match = _LINEAR_SIZE.fullmatch(value)
    return match is not None and int(match[2]) == int(match[1]) + 1


@lru_cache(maxsize=4096)
def checked_word(label: str, value: str) -> str:
    """Return the value of a label, or `other` if no plugin writes that value.

    Values are escaped. A label without a vocabulary (`comm_name`, `value`, and the versions of
    `build`, which have a syntax of their own) keeps its value.
    """
    if label in _PATTERNS:
        return value if _PATTERNS[label].fullmatch(value) else OTHER
    if label in _WORDS:
        return value if value in _WORDS[label] else OTHER
    if label == "message_size":
        return value if _is_size(value) else OTHER
    return value


_CHOSEN_MAX = {"comm_name": COMM_NAMES_MAX, "value": LABEL_VALUES_MAX}


class Vocabulary:
    """The allowed label values of one job: fixed ones, and the first ones it chose itself."""

    def __init__(self) -> None:
        self._chosen: dict[str, set[str]] = {label: set() for label in _CHOSEN_MAX}

    def word(self, label: str, value: str) -> str:
        """Return the value of a label, or `other`; values are escaped."""
        chosen = self._chosen.get(label)
        if chosen is None:
            return checked_word(label, value)
        if value not in chosen:
            if len(chosen) >= _CHOSEN_MAX[label]:
                return OTHER
            chosen.add(value)
        return value
