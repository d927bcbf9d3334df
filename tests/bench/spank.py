# SPDX-License-Identifier: Apache-2.0
"""What the SPANK plugin's callbacks cost a command or a step, in a fake Slurm."""

import subprocess
from pathlib import Path

from tests.bench.sample import Sample
from tests.support.repository import BUILD

PLUGIN = BUILD / "spank_nccl_inspector.so"
FAKE_SLURM = BUILD / "host" / "fake_slurm"
LIMIT_MS = 1.0

CASES = [
    ("allocator", "prom"),
    ("local", "prom"),
    ("remote", "prom"),
    ("remote", "off"),
    ("remote", "no wish"),
]


def _play(folder: Path, context: str, wish: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each round in the callbacks, and in loading the plugin."""
    option = [] if wish == "no wish" else [f"--option={wish}"]
    words = [f"--word=conf={folder}/conf", "--job=7", f"--time={rounds}"]
    done = subprocess.run(
        [FAKE_SLURM, PLUGIN, f"--context={context}", *words, *option],
        capture_output=True,
        text=True,
        check=True,
        env={},
    )
    pairs = [line.split() for line in done.stdout.splitlines()]
    return [int(one) / 1e6 for one, _ in pairs], [int(two) / 1e6 for _, two in pairs]


def measure(folder: Path, rounds: int) -> list[Sample]:
    """Measure the contexts of a job with a directory; the site's default is off.

    Raises:
        subprocess.CalledProcessError: the fake Slurm failed.
    """
    (folder / "run" / "jobs" / "7" / "raw").mkdir(parents=True)
    (folder / "conf").write_text(f"run_dir = {folder}/run\n", encoding="ascii")
    samples, loads = [], []
    for context, wish in CASES:
        spent, loading = _play(folder, context, wish, rounds)
        samples.append(Sample(f"SPANK callbacks, {context}, {wish}", spent, LIMIT_MS))
        loads += loading
    return [*samples, Sample("SPANK: dlopen of the plugin", loads)]
