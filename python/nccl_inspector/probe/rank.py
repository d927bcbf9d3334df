# SPDX-License-Identifier: Apache-2.0
"""What each task of the step runs: connect to the hub, and do what it says until it says `end`.

It may run in a user's own Python, so it needs the standard library only.
"""

import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.probe.backend import Backend, Place
from nccl_inspector.probe.errors import LostError, MemoryLackError, ProbeError
from nccl_inspector.probe.plan import SIZE_MAX
from nccl_inspector.probe.result import NCCL
from nccl_inspector.probe.tcp_backend import TcpBackend, interface_address
from nccl_inspector.probe.torch_backend import TorchBackend
from nccl_inspector.probe.wire import CHECKS, KEY_BYTES, RANKS_MAX, Message, Wire

KEY_VARIABLE = "NCCL_INSPECTOR_PROBE_KEY"
_OPERATIONS_MAX = 1 << 20
_WORDS_MAX = 400


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ProbeError(f"{name} is not a number: the task was not started by Slurm")
    return int(text)


def count_of(text: str) -> int:
    """Return the number at the end of `4`, `a100:4` or `gpu:a100:4`; 0 if there is none."""
    last = text.rpartition(":")[2]
    return int(last) if last.isascii() and last.isdigit() and len(last) < 6 else 0


def place_of(environ: Mapping[str, str]) -> Place:
    """Return the place of a task by its environment.

    Raises:
        ProbeError: it is not a task of a probe's step.
    """
    try:
        key = bytes.fromhex(environ.get(KEY_VARIABLE, ""))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ProbeError(f"{KEY_VARIABLE} is not set: the task was not started by a probe")
    names = "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"
    rank, ranks, local = (_number(environ, name) for name in names)
    return Place(rank, ranks, local, key)


def _size(message: Message) -> int:
    return CHECKS.integer(message.get("bytes"), SIZE_MAX * 16)


def _operations(message: Message) -> int:
    return CHECKS.integer(message.get("operations"), _OPERATIONS_MAX)


def obey(backend: Backend, message: Message) -> dict[str, Any]:
    """Do what the hub says and return the answer.

    Raises:
        ProbeError: it was not possible.
        RefusedError: the message is not one of the hub's.
    """
    match message.get("do"):
        case "join":
            tables = (CHECKS.table(message.get(name)) for name in ("first", "following"))
            backend.join(*tables)
        case "prepare":
            backend.prepare(CHECKS.text(message.get("collective")), _size(message))
        case "check":
            return {"right": backend.is_right()}
        case "time":
            return {"seconds": backend.timed(_operations(message))}
        case "meet":
            peer = CHECKS.integer(message.get("peer"), RANKS_MAX)
            backend.meet(peer, CHECKS.table(message.get("offer")))
        case "pass":
            sends = message.get("sends") is True
            return {"seconds": backend.passed(_size(message), _operations(message), sends=sends)}
        case _:
            raise RefusedError("message", "not one of the hub's")
    return {}


def _failure(err: InspectorError) -> dict[str, Any]:
    kind = "failed"
    if isinstance(err, LostError | MemoryLackError):
        kind = "lost" if isinstance(err, LostError) else "memory"
    return {"error": str(err)[:_WORDS_MAX], "kind": kind}


def _make(name: str, place: Place, host: str, limit_s: float) -> Backend:
    return (TorchBackend if name == NCCL else TcpBackend)(place, host, limit_s)


def serve(wire: Wire, place: Place, backend_name: str, interface: str, limit_s: float) -> None:
    """Say who this rank is, and obey until the hub says `end` or has gone."""
    who = {
        "rank": place.rank,
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "local": place.local,
        "gpus": count_of(os.environ.get("SLURM_GPUS_ON_NODE", "")),
    }
    try:
        host = interface_address(interface) if interface else wire.stream.getsockname()[0]
        backend = _make(backend_name, place, host, limit_s)
    except ProbeError as err:
        wire.send(who | _failure(err), limit_s)
        return
    wire.send(
        who | {"offer": backend.offer(), "device": backend.device, "version": backend.version},
        limit_s,
    )
    wire.stream.settimeout(None)
    try:
        while True:
            while (message := wire.taken()) is None:
                wire.stream.settimeout(None)
                wire.take()
            if message.get("do") == "end":
                break
            try:
                answer = obey(backend, message)
            except InspectorError as err:
                answer = _failure(err)
            wire.send(answer, limit_s)
    finally:
        backend.close()


def main(argv: list[str]) -> int:
    """Run a rank; its words are HOST PORT BACKEND INTERFACE SECONDS. Return the exit status."""
    try:
        host, port, backend_name, interface, limit = argv
        limit_s = float(limit)
        place = place_of(os.environ)
        # Slurm says from where srun was started: there the hub listens.
        host = host or os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
        try:
            stream = socket.create_connection((host, int(port)), limit_s)
            stream.sendall(place.key)
        except OSError as err:
            raise ProbeError(f"no connection to the probe at {host}:{port}: {err}") from err
        wire = Wire(stream)
        try:
            serve(wire, place, backend_name, interface, limit_s)
        except LostError:
            return 1  # the probe has ended, and has said why
        finally:
            wire.close()
    except InspectorError as err:
        print(f"nccl-inspector probe: {err}", file=sys.stderr)
        return 1
    return 0
