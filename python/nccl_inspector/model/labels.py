# SPDX-License-Identifier: Apache-2.0
"""Operations of a process by what NCCL says of them besides their kind, as its box tells it."""

from dataclasses import dataclass

USER_TAG, KERNEL, ROOT = "user_tag", "kernel", "root"
LABEL_KINDS = (USER_TAG, KERNEL, ROOT)  # by the numbers of plugin/box/box.h
ALL_COMMS = -1
OTHERS = -1


@dataclass(frozen=True, slots=True)
class Label:
    """Operations with one tag of the application, of one symmetric kernel, or with one root.

    NCCL tells tags and kernels from 2.31 on, and no more than the call of a Broadcast from 2.29
    on. Parts of a group of Sends and Recvs count each; their times overlap, and are left out.
    """

    kind: int  # index of LABEL_KINDS
    comm: int  # of a root: Comm.index; else ALL_COMMS
    func: int  # of a root: index of FUNCS; else 0
    value: int  # tag or root; OTHERS: of all for which there was no place
    text: str  # of a kernel
    ops: int
    bytes: int
    timed_ops: int  # those with a time
    busy_ns: int  # theirs
    first_ns: int  # Unix time, to about a second
    last_ns: int
