# SPDX-License-Identifier: Apache-2.0
"""GPUs and their NVLinks through NVML; any call may be unsupported, fail, or never return."""

from collections.abc import Callable, Iterable, Iterator
from ctypes import CDLL, byref
from typing import Any

from nccl_inspector.counters.counter_table import CounterSpec, load_counters
from nccl_inspector.counters.pci import pci_address
from nccl_inspector.counters.sample import GPU, Device, Sample
from nccl_inspector.system.clock import SYSTEM_CLOCK, Clock
from nccl_inspector.system.printable import printable

LINKS_MAX = 18
_LIBRARY = "libnvidia-ml.so.1"  # as pynvml loads it
# The most values in one call.
_FIELDS_MAX = 64
_NO_SCOPE = 0
_LINK_COUNT, _LINK_SPEED = 91, 164
_REMAP_PENDING, _REMAP_FAILED = 144, 145
_LEVEL_FIELDS = {
    _LINK_COUNT: "nvlinks",
    _REMAP_PENDING: "row_remap_pending",
    _REMAP_FAILED: "row_remap_failed",
}
# The member of the union for each NVML_VALUE_TYPE_*; fractions are not counters.
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
# Bits of the reasons why clocks are low at this moment; the counters of time cover the whole job.
_REASONS = {
    0x4: "reason_power_cap",
    0x8: "reason_hw_slowdown",
    0x20: "reason_sw_thermal",
    0x40: "reason_hw_thermal",
    0x80: "reason_power_brake",
}

Field = tuple[int, int]  # number and scope


class _Nvml:
    """The module pynvml; what it does not support gives None.

    nvidia-ml-py has the calls of all drivers of its time; distributions have older versions.
    """

    def __init__(self, module: Any) -> None:
        self.module = module

    def ask(self, name: str, *words: Any) -> Any:
        """Return the result of the call with this name; None if it does not exist or fails."""
        call: Callable[..., Any] | None = getattr(self.module, name, None)
        if call is None:
            return None
        try:
            return call(*words)
        except self.module.NVMLError:
            return None

    def fields(self, handle: Any, wanted: Iterable[Field]) -> dict[Field, int]:
        """Return the values of the fields that exist."""
        asked = list(wanted)
        found: dict[Field, int] = {}
        for at in range(0, len(asked), _FIELDS_MAX):
            some = asked[at : at + _FIELDS_MAX]
            values = self.ask("nvmlDeviceGetFieldValues", handle, some) or ()
            for key, value in zip(some, values, strict=False):
                member = _MEMBERS.get(value.valueType)
                if value.nvmlReturn == 0 and member:
                    number = int(getattr(value.value, member))
                    found |= {key: number} if number >= 0 else {}
        return found


def _counters(kind: str) -> Iterator[tuple[int, CounterSpec]]:
    for counter in load_counters().values():
        if counter.kind == kind and counter.field is not None:
            yield counter.field, counter


def _text(value: Any) -> str:
    """Return a text from NVML; older bindings return bytes."""
    words = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")
    return printable(words[:96])


def _reasons(nvml: _Nvml, handle: Any) -> dict[str, int]:
    for name in (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ):
        mask = nvml.ask(name, handle)
        if mask is not None:
            return {word: int(bool(mask & bit)) for bit, word in _REASONS.items()}
    return {}


def _levels(nvml: _Nvml, handle: Any) -> dict[str, int]:
    sm_clock, core_temperature = 1, 0
    asked = {
        "pcie_generation": nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_generation_max": nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "sm_clock_mhz": nvml.ask("nvmlDeviceGetClockInfo", handle, sm_clock),
        "sm_clock_max_mhz": nvml.ask("nvmlDeviceGetMaxClockInfo", handle, sm_clock),
        "temperature_celsius": nvml.ask("nvmlDeviceGetTemperature", handle, core_temperature),
    }
    return {name: int(value) for name, value in asked.items() if value is not None}


def _fabric(nvml: _Nvml, handle: Any) -> dict[str, str]:
    """Return state and health mask of the NVLink fabric; empty if the GPU is not part of one."""
    make = getattr(nvml.module, "c_nvmlGpuFabricInfo_v2_t", None)
    if make is None:
        return {}
    info = make()
    if nvml.ask("nvmlDeviceGetGpuFabricInfoV", handle, byref(info)) is None:
        return {}
    if info.state == 0:  # not supported
        return {}
    return {"fabric_state": str(info.state), "fabric_health": f"{info.healthMask:#x}"}


def _links(nvml: _Nvml, handle: Any, gpu: str, count: int) -> tuple[list[Device], dict[str, int]]:
    """Return the links that are up, and the GPU's levels about links."""
    states = {link: nvml.ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(count)}
    active = [link for link, state in states.items() if state]
    levels = {"nvlinks_active": len(active)} if any(s is not None for s in states.values()) else {}
    if not active:
        return [], levels
    counters = dict(_counters("nvlink"))
    # Counters that the first link lacks are missing on the others, too, and are not asked for.
    first = nvml.fields(handle, [(field, active[0]) for field in (*counters, _LINK_SPEED)])
    known = [field for field, _ in first]
    rest = nvml.fields(handle, [(field, link) for link in active[1:] for field in known])
    values = first | rest
    devices = []
    for link in active:
        found = {
            counter.name: values[field, link]
            for field, counter in counters.items()
            if (field, link) in values
        }
        speed = values.get((_LINK_SPEED, link))
        of_link = {} if speed is None else {"speed_mb_s": speed}
        devices.append(Device("nvlink", f"{gpu}/{link}", found, of_link, {}))
    return devices, levels


def _gpu(nvml: _Nvml, index: int, handle: Any) -> list[Device]:
    """Return a GPU and its links."""
    uuid = _text(nvml.ask("nvmlDeviceGetUUID", handle))
    minor = nvml.ask("nvmlDeviceGetMinorNumber", handle)
    pci = nvml.ask("nvmlDeviceGetPciInfo", handle)
    # As the plugin's label `gpu`. Without minor and UUID the index keeps two GPUs apart.
    name = f"GPU{minor}" if minor is not None else uuid[:12] or f"unknown{index}"
    counters = dict(_counters("gpu"))
    values = nvml.fields(handle, [(field, _NO_SCOPE) for field in (*counters, *_LEVEL_FIELDS)])
    levels = {word: values[f, 0] for f, word in _LEVEL_FIELDS.items() if (f, 0) in values}
    links, of_links = _links(nvml, handle, name, min(levels.get("nvlinks", LINKS_MAX), LINKS_MAX))
    facts = {
        "uuid": uuid,
        "pci": pci_address(_text(pci.busId)) if pci else "",
        "model": _text(nvml.ask("nvmlDeviceGetName", handle)),
    }
    found = {one.name: values[field, 0] for field, one in counters.items() if (field, 0) in values}
    levels |= of_links | _levels(nvml, handle) | _reasons(nvml, handle)
    facts = {word: text for word, text in facts.items() if text} | _fabric(nvml, handle)
    return [Device("gpu", name, found, levels, facts), *links]


def _read(nvml: _Nvml) -> tuple[list[Device], list[str]]:
    """Return all GPUs with their links, and texts about those that do not answer."""
    devices: list[Device] = []
    problems: list[str] = []
    for index in range(nvml.ask("nvmlDeviceGetCount") or 0):
        try:
            handle = nvml.module.nvmlDeviceGetHandleByIndex(index)
        except nvml.module.NVMLError as err:
            problems.append(f"NVML's GPU {index} does not answer: {_text(err)}")
            continue
        devices += _gpu(nvml, index, handle)
    return devices, problems


def read_gpus(clock: Clock = SYSTEM_CLOCK) -> Sample:
    """Return a sample of all GPUs. Call it in a child: NVML may hang."""
    time_s, boot_s = clock.unix_s(), clock.boot_s()
    try:
        CDLL(_LIBRARY)
    except OSError:
        return Sample(GPU, time_s, boot_s, (), "no NVIDIA driver")
    try:
        import pynvml  # takes 50 ms, which nodes without a driver save
    except ImportError:
        return Sample(GPU, time_s, boot_s, (), "the Python module pynvml is not there")
    nvml = _Nvml(pynvml)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as err:
        if err.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return Sample(GPU, time_s, boot_s, (), "no NVIDIA driver")
        return Sample(GPU, time_s, boot_s, (), problems=(f"NVML does not start: {_text(err)}",))
    devices, problems = _read(nvml)
    if not devices and not problems:
        return Sample(GPU, time_s, boot_s, (), "no GPU")
    return Sample(GPU, time_s, boot_s, tuple(devices), problems=tuple(problems))
