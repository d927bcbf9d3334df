# SPDX-License-Identifier: Apache-2.0
"""What NVML says here, call by call, and whether the plugin and it mean the same GPU.

pynvml (nvidia-ml-py) is used where it is installed. Nothing is changed: only queries.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from nccl_inspector.model.process import Gpu, Process
from tests.gpu.checks import Check

PROC_GPUS = Path("/proc/driver/nvidia/gpus")
LINKS_MAX = 18

# Fields by nvml.h's numbers; their units are in the names.
FIELDS = {
    "pcie_replay_count": 94, "nvlink_count": 91,
    "nvlink_data_tx_kib": 138, "nvlink_data_rx_kib": 139,
    "nvlink_xmit_bytes": 202, "nvlink_rcv_bytes": 204,
    "nvlink_dl_replay": 161, "nvlink_dl_recovery": 162, "nvlink_dl_crc": 163,
    "nvlink_speed_mbps": 164, "nvlink_state": 165,
    "power_violation_ns": 74, "thermal_violation_ns": 75, "sync_boost_ns": 76,
    "sw_thermal_ns": 269, "hw_thermal_ns": 270, "power_brake_ns": 271,
    "remapped_correctable": 142, "remapped_uncorrectable": 143,
    "remap_pending": 144, "remap_failed": 145,
    "pcie_tx_bytes": 197, "pcie_rx_bytes": 198,
}  # fmt: skip
ALL_LINKS = 0xFFFFFFFF  # scope of a field: the sum over all links
_OF_ALL_LINKS = frozenset({138, 139, 202, 204})
# nvmlValueType_t: the member of the union.
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

Facts = dict[str, Any]


def load() -> ModuleType | None:
    """Return pynvml, None where it, or NVML itself, is not installed."""
    try:
        module = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError_LibraryNotFound:
        return None
    module.nvmlShutdown()
    return module


def plain(value: Any) -> Any:
    """Return what a call gave as JSON can have it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "_fields_"):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    return str(value)


def _ask(nvml: Any, call: Callable[[], Any]) -> Any:
    """Return the answer, or `error: ...` in NVML's words."""
    try:
        return plain(call())
    except nvml.NVMLError as err:
        return f"error: {err}"
    except AttributeError as err:  # an older pynvml
        return f"error: {err}"


def _field(nvml: Any, handle: Any, field: int) -> Any:
    asked = [(field, ALL_LINKS)] if field in _OF_ALL_LINKS else [field]
    value = nvml.nvmlDeviceGetFieldValues(handle, asked)[0]
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)
    member = _MEMBERS.get(value.valueType)
    return getattr(value.value, member) if member else f"value of type {value.valueType}"


def _links(nvml: Any, handle: Any) -> list[Any]:
    """Return the state of each NVLink up to the first that is none."""
    states = []
    for link in range(LINKS_MAX):
        states.append(_ask(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link)))
        if isinstance(states[-1], str):
            break
    return states


def _device(nvml: Any, index: int) -> Facts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    calls: dict[str, Callable[[], Any]] = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "uuid": lambda: nvml.nvmlDeviceGetUUID(handle),
        "minor": lambda: nvml.nvmlDeviceGetMinorNumber(handle),
        "pci_bus_id": lambda: nvml.nvmlDeviceGetPciInfo(handle).busId,
        "mig_mode": lambda: nvml.nvmlDeviceGetMigMode(handle),
        "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
        "event_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "event_reasons_known": lambda: nvml.nvmlDeviceGetSupportedClocksEventReasons(handle),
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "ecc_mode": lambda: nvml.nvmlDeviceGetEccMode(handle),
        "ecc_corrected_volatile": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0),
        "ecc_uncorrected_volatile": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
        "ecc_uncorrected_aggregate": lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 1),
        "remapped_rows": lambda: nvml.nvmlDeviceGetRemappedRows(handle),
        "pcie_replays": lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie_width_max": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "power_violation": lambda: nvml.nvmlDeviceGetViolationStatus(handle, 0),
        "thermal_violation": lambda: nvml.nvmlDeviceGetViolationStatus(handle, 1),
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
    }
    facts = {name: _ask(nvml, call) for name, call in calls.items()}
    facts["nvlink_states"] = _links(nvml, handle)
    facts["fields"] = {
        name: _ask(nvml, partial(_field, nvml, handle, field)) for name, field in FIELDS.items()
    }
    return facts


def ask_all(nvml: Any) -> Facts:
    """Return what NVML says of the driver and of each GPU; of what fails, its error.

    Raises:
        pynvml.NVMLError: NVML itself does not start.
    """
    nvml.nvmlInit()
    try:
        return {
            "driver": plain(nvml.nvmlSystemGetDriverVersion()),
            "nvml": plain(nvml.nvmlSystemGetNVMLVersion()),
            "devices": [_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())],
        }
    finally:
        nvml.nvmlShutdown()


def pci_address(text: str) -> tuple[int, ...]:
    """Return domain, bus, device and function: texts differ in the domain's digits and in case."""
    found = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.([0-9a-fA-F]+)", text)
    return tuple(int(part, 16) for part in found.groups()) if found else ()


def proc_gpus(root: Path) -> dict[tuple[int, ...], Facts]:
    """Return what /proc/driver/nvidia/gpus says, by PCI address; empty where there is none."""
    table = {}
    for path in sorted(root.glob("*/information")):
        words = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        facts = {name.strip(): value.strip() for name, value in words.items()}
        table[pci_address(path.parent.name)] = {
            "minor": facts.get("Device Minor"), "uuid": facts.get("GPU UUID"),
        }  # fmt: skip
    return table


def refused(facts: Facts) -> list[str]:
    """Return the calls and fields of the devices that gave an error, each once."""
    found: dict[str, None] = {}
    for device in facts["devices"]:
        for name, value in (device | device["fields"]).items():
            if isinstance(value, str) and value.startswith("error: "):
                found[f"{name}: {value.removeprefix('error: ')}"] = None
    return list(found)


def _used(boxes: Iterable[Process]) -> set[Gpu]:
    return {gpu for box in boxes for gpu in box.gpus}


def check_identity(
    facts: Facts, proc: Mapping[tuple[int, ...], Facts], boxes: Iterable[Process]
) -> Check:
    """UUID, PCI address and minor number are those of NVML, and of /proc where that has them."""
    check = Check("gpu", "Are UUID, PCI address and minor number in the box those of NVML?")
    known = {pci_address(str(device["pci_bus_id"])): device for device in facts["devices"]}
    gpus = _used(boxes)
    check.demand(bool(gpus), "no box has a GPU")
    for gpu in gpus:
        at = pci_address(gpu.pci_bus_id)
        device = known.get(at)
        if device is None:
            check.problems.append(f"NVML has no GPU at {gpu.pci_bus_id}")
            continue
        check.demand(gpu.uuid == device["uuid"], f"UUID {gpu.uuid}, NVML {device['uuid']}")
        if at in proc or gpu.minor >= 0:
            check.demand(gpu.minor == device["minor"], f"minor {gpu.minor}, NVML {device['minor']}")
            wanted = f"GPU{device['minor']}"
        else:
            wanted = device["uuid"][: len("GPU-") + 8]
        check.demand(gpu.label == wanted, f"label {gpu.label}, expected {wanted}")
    check.figures = {
        "boxes": [
            [gpu.label, gpu.uuid, gpu.pci_bus_id, gpu.minor] for gpu in sorted(gpus, key=str)
        ],
        "proc": [[list(at), one["minor"], one["uuid"]] for at, one in proc.items()],
        "not_supported": refused(facts),
    }
    return check
