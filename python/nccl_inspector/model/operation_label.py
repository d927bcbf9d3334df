# SPDX-License-Identifier: Apache-2.0
"""Operations of a process by tag, symmetric kernel or root, from its box."""

from dataclasses import dataclass

USER_TAG, KERNEL, ROOT = "user_tag", "kernel", "root"
LABEL_KINDS = (USER_TAG, KERNEL, ROOT)  # by the numbers of plugin/box/box.h
ALL_COMMS = -1
OTHERS = -1


@dataclass(frozen=True, slots=True)
class Label:
    """Operations with one tag of the application, of one symmetric kernel, or with one root.

    NCCL tells tags and kernels from 2.31 on; of a Broadcast it tells only the call from 2.29 on.
    The parts of a group of Sends and Recvs count one by one, but without times, because these
    overlap.
    """

    kind: int  # index of LABEL_KINDS
    comm: int  # for a root: Comm.index; else ALL_COMMS
    func: int  # for a root: index of FUNCS; else 0
    value: int  # tag or root; OTHERS: all that did not fit
    text: str  # for a kernel: its name
    ops: int
    bytes: int
    timed_ops: int  # those with a time
    busy_ns: int  # of `timed_ops`
    first_ns: int  # Unix time, exact to about a second
    last_ns: int
