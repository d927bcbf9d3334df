# SPDX-License-Identifier: Apache-2.0
"""Bus bandwidth and size classes: the same rules as plugin/box/bandwidth.c."""

UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")


def bus_factor(func: str, nranks: int) -> float:
    """Return the bytes on the bus for one byte of the message; 0: not defined.

    The message is what the caller passes: for AllGather and ReduceScatter, one rank's share. For
    AlltoAll, Gather and Scatter the factor is 1, because their rate already counts only the bytes
    that go to other ranks (plugin/hot/groups.h).
    """
    if nranks < 2:
        return 0.0
    match func:
        case "AllReduce":
            return 2 * (nranks - 1) / nranks
        case "AllGather" | "ReduceScatter":
            return float(nranks - 1)
        case "Broadcast" | "Reduce" | "Send" | "Recv" | "SendRecv":
            return 1.0
        case "AlltoAll" | "Gather" | "Scatter":
            return 1.0
        case _:
            return 0.0


def message_bytes(func: str, buffer_bytes: int, nranks: int) -> float:
    """Return the bytes of the message, as `bus_factor` means it, from those of the larger buffer.

    nccl-tests says the size of the larger buffer: of all ranks' shares, and of what a rank has for
    all ranks, itself included.
    """
    match func:
        case "AllGather" | "ReduceScatter":
            return buffer_bytes / nranks
        case "AlltoAll" | "Gather" | "Scatter":
            return buffer_bytes * (nranks - 1) / nranks
        case _:
            return float(buffer_bytes)


def bus_gbs(func: str, buffer_bytes: int, nranks: int, seconds: float) -> float:
    """Return the bus bandwidth in GB/s of an operation that took so long, which is more than 0 s.

    `buffer_bytes` are those of the larger buffer. 0: not defined.
    """
    return bus_factor(func, nranks) * message_bytes(func, buffer_bytes, nranks) / seconds / 1e9


def size_class(size_bytes: int) -> int:
    """Return floor(log2(bytes)), and 0 for no bytes."""
    return max(size_bytes.bit_length() - 1, 0)


def size_label(class_: int) -> str:
    """Return `64-128KB` for class 16: both bounds in the unit of the lower one."""
    unit, exponent = divmod(class_, 10)
    low = 1 << exponent if class_ else 0
    return f"{low}-{2 << exponent}{UNITS[unit]}"
