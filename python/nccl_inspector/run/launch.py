# SPDX-License-Identifier: Apache-2.0
"""Run a command, with the profiler plugin in its environment if that is possible."""

import os
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import F_GETFL, fcntl
from pathlib import Path
from types import FrameType

# The terminal sends these signals to the command as well, and the command decides what to do.
_LEFT_TO_IT = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_ENDING = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})
NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128  # the exit statuses that a shell uses


def measured(environ: Mapping[str, str], profiler: Path, boxes: Path) -> dict[str, str]:
    """Return the environment for a command whose processes are to leave their boxes in `boxes`.

    packaging/doc/internals/plugin-variables.md says what each variable does. NCCL's own
    variables and the settings of the site are not changed.
    """
    return {
        **environ,
        "NCCL_PROFILER_PLUGIN": str(profiler),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(boxes),
        "NCCL_INSPECTOR_PROM_DUMP": "0",
        "NCCL_INSPECTOR_JSON": "0",
    }


def why_not(environ: Mapping[str, str], profiler: Path) -> str:
    """Return why nothing can be measured; empty if it can."""
    if environ.get("NCCL_PROFILER_PLUGIN"):
        return "NCCL_PROFILER_PLUGIN is set already"
    if not os.access(profiler, os.R_OK):
        return f"no profiler plugin at {profiler} (--profiler says where it is)"
    return ""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended.

    `status`: its exit status, as a shell has it. `why`: why it did not run, as text. `cancelled`:
    somebody sent a signal that ends a command while it ran.
    """

    status: int
    why: str = ""
    cancelled: bool = False

    @property
    def state(self) -> str:
        """Slurm's word for it."""
        if not self.status:
            return "COMPLETED"
        return "CANCELLED" if self.cancelled else "FAILED"


def output_files() -> dict[Path, int]:
    """Return the files that standard output and standard error go to, in this order.

    With how many bytes of each are not the command's. What goes to a terminal or into a pipe is the
    command's own, and is not read.
    """
    found: dict[Path, int] = {}
    for fd in (1, 2):
        with suppress(OSError):
            status = os.fstat(fd)
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if not stat.S_ISREG(status.st_mode) or not os.path.samestat(path.stat(), status):
                continue
            at = status.st_size
            if not fcntl(fd, F_GETFL) & os.O_APPEND:
                at = min(at, os.lseek(fd, 0, os.SEEK_CUR))
            found.setdefault(path, at)
    return found


def run_command(argv: Sequence[str], environ: Mapping[str, str]) -> CommandEnd:
    """Run a command to its end."""
    command: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals that came while the command was being started
    came: set[int] = set()

    def pass_on(number: int, _: FrameType | None) -> None:
        came.add(number)
        if command is not None:
            command.send_signal(number)
        else:
            early.append(number)

    handlers = dict.fromkeys(_PASSED_ON, pass_on) | dict.fromkeys(
        _LEFT_TO_IT, lambda number, _: came.add(number)
    )
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        # Signals that are ignored, for example because of nohup, must stay ignored in the command.
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        command = subprocess.Popen(argv, env=dict(environ))
        for number in early:
            command.send_signal(number)
        status = command.wait()
    except FileNotFoundError as err:
        return CommandEnd(NOT_FOUND, f"{err.filename or argv[0]}: {err.strerror}")
    except OSError as err:
        return CommandEnd(NOT_EXECUTABLE, f"{err.filename or argv[0]}: {err.strerror}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return CommandEnd(BY_SIGNAL - status if status < 0 else status, cancelled=bool(came & _ENDING))
