# SPDX-License-Identifier: Apache-2.0
"""Run a command with the profiler plugin in its environment; whatever is wrong, it is run."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

# The terminal sends these to the command as well, which decides what comes of it.
_LEFT_TO_IT = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
NOT_FOUND, NOT_EXECUTABLE, BY_SIGNAL = 127, 126, 128  # as a shell says it


def measured(environ: Mapping[str, str], profiler: Path, boxes: Path) -> dict[str, str]:
    """Return the environment of a command whose processes leave their boxes in that directory.

    packaging/doc/internals/plugin-variables.md says what each variable does. Variables of NCCL
    itself and those that the site has set are not touched.
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
    """Return why nothing can be measured; empty when something can."""
    if environ.get("NCCL_PROFILER_PLUGIN"):
        return "NCCL_PROFILER_PLUGIN is set already"
    if not os.access(profiler, os.R_OK):
        return f"no profiler plugin at {profiler} (--profiler says where it is)"
    return ""


def run_command(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Run it to its end; return its exit status as a shell does, and why it could not be run."""
    command: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: FrameType | None) -> None:
        if command is not None:
            command.send_signal(number)

    handlers = dict.fromkeys(_PASSED_ON, pass_on) | dict.fromkeys(_LEFT_TO_IT, lambda *_: None)
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        # What is ignored, as by nohup, the command is to ignore, too.
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        command = subprocess.Popen(argv, env=dict(environ))
        status = command.wait()
    except FileNotFoundError as err:
        return NOT_FOUND, f"{err.filename or argv[0]}: {err.strerror}"
    except OSError as err:
        return NOT_EXECUTABLE, f"{err.filename or argv[0]}: {err.strerror}"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (BY_SIGNAL - status if status < 0 else status), ""
