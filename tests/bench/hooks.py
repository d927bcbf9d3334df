# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog cost each job, beside spawning /bin/true in the same way."""

import os
import shutil
import time
from pathlib import Path
from statistics import median

from tests.bench.sample import Sample
from tests.support.hook_scripts import EPILOG, JOB, PROLOG, SHELLS, Node, sh

ON_MS, OFF_MS = 5.0, 1.0
TRUE = "spawn /bin/true"

Times = dict[tuple[str, float | None], list[float]]


def _spawn_ms(env: dict[str, str], *argv: Path) -> float:
    begun = time.perf_counter_ns()
    pid = os.posix_spawn(argv[0], [str(arg) for arg in argv], env)
    status = os.waitpid(pid, 0)[1]
    spent_ms = (time.perf_counter_ns() - begun) / 1e6
    if status:
        raise ChildProcessError(f"{argv[-1]} ended with wait status {status}")
    return spent_ms


def _one_round(node: Node, times: Times) -> None:
    """Run each case once under the node's shell; the job's directory comes and goes."""
    env = JOB | {"NCCL_INSPECTOR_TEST_RUN_DIR": str(node.run_dir)}
    off = env | {"SPANK_NCCL_INSPECTOR": "off"}
    name = f"sh is {node.shell.resolve().name}"
    disabled = node.run_dir / "control" / "disabled"

    def note(what: str, limit_ms: float, spent_ms: float) -> None:
        times.setdefault((f"{what}, {name}", limit_ms), []).append(spent_ms)

    note("prolog, off", OFF_MS, _spawn_ms(off, node.shell, PROLOG))
    disabled.touch()
    note("prolog, disabled", OFF_MS, _spawn_ms(env, node.shell, PROLOG))
    disabled.unlink()
    note("epilog, off", OFF_MS, _spawn_ms(off, node.shell, EPILOG))
    note("prolog", ON_MS, _spawn_ms(env, node.shell, PROLOG))
    (node.run_dir / "prom" / "42.prom").touch()
    note("epilog", ON_MS, _spawn_ms(env, node.shell, EPILOG))
    (ended,) = node.ended()  # also: the hooks did their work
    shutil.rmtree(ended)


def measure(folder: Path, rounds: int) -> list[Sample]:
    """Measure in turns, so that a busy moment meets all alike.

    Raises:
        ChildProcessError: a hook failed.
    """
    nodes = [Node(folder / f"run-{shell}", sh(folder, shell)) for shell in SHELLS]
    times: Times = {}
    bare: list[float] = []
    for _ in range(rounds):
        for node in nodes:
            bare.append(_spawn_ms(JOB, Path("/bin/true")))
            _one_round(node, times)
    base_ms = median(bare)
    return [
        Sample(TRUE, bare),
        *(Sample(what, spent, limit_ms, base_ms) for (what, limit_ms), spent in times.items()),
    ]
