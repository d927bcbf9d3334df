# SPDX-License-Identifier: Apache-2.0
"""An srun that starts all tasks of a step on this host, each on a node of its own name."""

import sys
from collections.abc import Sequence
from pathlib import Path

# Tasks of `nodes` run the file `shim` before all else: an isolated Python has no sitecustomize.
_PROGRAM = """#!{python}
import os, subprocess, sys
options = dict(one[2:].partition("=")[::2] for one in sys.argv[1:] if one.startswith("--"))
command = [one for one in sys.argv[1:] if not one.startswith("--")]
per_node = int(options.get("ntasks-per-node", 1))
tasks = []
for rank in range(int(options["ntasks"])):
    node = f"n{{rank // per_node + 1}}"
    env = dict(os.environ, SLURM_PROCID=str(rank), SLURM_NTASKS=options["ntasks"],
               SLURM_LOCALID=str(rank % per_node), SLURMD_NODENAME=node,
               SLURM_LAUNCH_NODE_IPADDR="127.0.0.1")
    words = list(command)
    if node in {nodes!r}:
        at = words.index("-c") + 1
        words[at] = "exec(open({shim!r}).read())\\n" + words[at]
    tasks.append(subprocess.Popen(words, env=env))
sys.exit(max(task.wait() for task in tasks))
"""


def make_srun(folder: Path, nodes: Sequence[str] = (), shim: str = "") -> Path:
    """Write `srun` into a new folder `bin`; on `nodes` Python runs `shim` before all else."""
    first, programs = folder / "shim.py", folder / "bin"
    programs.mkdir()
    first.write_text(shim)
    path = programs / "srun"
    path.write_text(_PROGRAM.format(python=sys.executable, nodes=list(nodes), shim=str(first)))
    path.chmod(0o755)
    return programs
