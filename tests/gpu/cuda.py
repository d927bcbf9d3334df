# SPDX-License-Identifier: Apache-2.0
"""As much of CUDA's driver interface as a rank needs. Prototypes: cuda.h of CUDA 12.

The driver's and not the runtime's, because each machine with a GPU has it. NCCL's own runtime
uses a device's primary context, which is the one that is made current here.
"""

import struct
from collections.abc import Sequence
from ctypes import (
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
    create_string_buffer,
)
from typing import Any

from tests.gpu.sharedlib import Library

# The second: where container runtimes put the driver, should the loader's cache lack it.
CANDIDATES = (
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
)
STREAM_NON_BLOCKING = 1
EVENT_DISABLE_TIMING = 2

_HANDLE = c_void_p  # CUcontext, CUstream, CUevent
_POINTER = c_uint64  # CUdeviceptr
_DEVICE = c_int
_OUT = c_void_p  # where the answer goes

# By the exported names: cuda.h makes cuMemAlloc and so on those with _v2.
PROTOTYPES: dict[str, Sequence[Any]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_OUT,),
    "cuGetErrorName": (c_int, _OUT),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, c_int),
    "cuDeviceGetName": (_OUT, c_int, _DEVICE),
    "cuDeviceGetPCIBusId": (_OUT, c_int, _DEVICE),
    "cuDevicePrimaryCtxRetain": (_OUT, _DEVICE),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuMemAlloc_v2": (_OUT, c_size_t),
    "cuMemcpyDtoH_v2": (_OUT, _POINTER, c_size_t),
    "cuMemsetD32Async": (_POINTER, c_uint, c_size_t, _HANDLE),
    "cuStreamCreate": (_OUT, c_uint),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamWaitEvent": (_HANDLE, _HANDLE, c_uint),
    "cuEventCreate": (_OUT, c_uint),
    "cuEventRecord": (_HANDLE, _HANDLE),
}


class Cuda(Library):
    """The driver."""

    def __init__(self, path: str) -> None:
        """Load and initialise it.

        Raises:
            OSError: no such library.
            RuntimeError: there is no GPU, or none that can be used.
        """
        super().__init__(path, PROTOTYPES)
        self.call("cuInit", 0)

    def reason(self, code: int) -> str:
        """Return the name of an error, CUDA_ERROR_..."""
        name = c_char_p()
        self.c.cuGetErrorName(code, byref(name))
        return (name.value or b"unknown error").decode() + f" ({code})"

    def _number(self, name: str) -> int:
        found = c_int()
        self.call(name, byref(found))
        return found.value

    def version(self) -> int:
        """Return the CUDA version of the driver, 13000 for 13.0."""
        return self._number("cuDriverGetVersion")

    def count(self) -> int:
        """Return how many devices this process sees."""
        return self._number("cuDeviceGetCount")

    def name(self, ordinal: int) -> str:
        """Return a device's name."""
        text = create_string_buffer(128)
        self.call("cuDeviceGetName", text, len(text), self._device(ordinal))
        return text.value.decode()

    def bus_id(self, ordinal: int) -> str:
        """Return a device's PCI address, `0000:01:00.0`."""
        text = create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, len(text), self._device(ordinal))
        return text.value.decode()

    def _device(self, ordinal: int) -> int:
        device = c_int()
        self.call("cuDeviceGet", byref(device), ordinal)
        return device.value

    def use(self, ordinal: int) -> None:
        """Make the device's primary context that of this thread."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self._device(ordinal))
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory on the device."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), size_bytes)
        return address.value

    def stream(self) -> int:
        """Return a new stream that does not wait for the default one."""
        handle = c_void_p()
        self.call("cuStreamCreate", byref(handle), STREAM_NON_BLOCKING)
        return handle.value or 0

    def event(self) -> int:
        """Return a new event, without a time."""
        handle = c_void_p()
        self.call("cuEventCreate", byref(handle), EVENT_DISABLE_TIMING)
        return handle.value or 0

    def fill(self, address: int, value: float, floats: int, stream: int) -> None:
        """Write a float so many times."""
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        self.call("cuMemsetD32Async", address, bits, floats, stream)

    def read_float(self, address: int) -> float:
        """Return the float at an address; what was to write it must be done."""
        data = create_string_buffer(4)
        self.call("cuMemcpyDtoH_v2", data, address, 4)
        value: float = struct.unpack("<f", data.raw)[0]
        return value

    def order(self, event: int, first: int, then: int) -> None:
        """Let one stream wait for what the other has been given up to now."""
        self.call("cuEventRecord", event, first)
        self.call("cuStreamWaitEvent", then, event, 0)

    def wait(self, stream: int) -> None:
        """Return when the stream has nothing left to do."""
        self.call("cuStreamSynchronize", stream)


def find_driver() -> Cuda:
    """Return the driver.

    Raises:
        OSError: this machine has none.
        RuntimeError: there is no GPU, or none that can be used.
    """
    tried = []
    for path in CANDIDATES:
        try:
            return Cuda(path)
        except OSError as err:
            tried.append(str(err))
    raise OSError("; ".join(tried))
