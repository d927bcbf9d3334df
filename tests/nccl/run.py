# SPDX-License-Identifier: Apache-2.0
"""`make test-nccl`: NVIDIA's releases of NCCL call the plugin; what it counted must be exact."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from nccl_inspector.box.reader import read_box
from tests.nccl.box import Called
from tests.nccl.judge import Verdict, judge_rank, judge_steps
from tests.nccl.nccl import PLAYED
from tests.nccl.neighbour import ADDRESS, running
from tests.nccl.ras import Questions
from tests.nccl.scenes import HOST, NETWORK, RANKS, TOLD
from tests.nccl.table import write_table
from tests.nccl.wheels import NAME_ONLY, RELEASES, fetch
from tests.support.repository import BUILD

PLUGIN = BUILD / "libnccl-profiler-inspector.so"
ROOT = BUILD.parent
LIMIT_S = 600.0  # for what hangs; on a busy machine a play takes minutes
# No GPU of another rank is reached directly: ranks talk through the host's memory, or sockets.
_NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
}


def rank_env(
    boxes: Path, rank: int, place: str, by_name: bool, questions: Questions | None
) -> dict[str, str]:
    """Return a rank's environment: ours without Slurm's and NCCL's, and what is to be loaded."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "NCCL"))
    }
    more = {
        HOST: {},
        TOLD: {"NCCL_ALLGATHERV_ENABLE": "0"},
        NETWORK: {
            "NCCL_HOSTID": f"host-{rank}",
            "NCCL_PROTO": "Simple",
            "NCCL_INSPECTOR_NET": "on",
        },
    }
    service = {ADDRESS: str(questions.address)} if questions else {"NCCL_RAS_ENABLE": "0"}
    return inherited | _NCCL | more[place] | service | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'python'}",
        "LD_LIBRARY_PATH": f"{PLAYED.parent}:{BUILD / 'fakecuda'}:{PLUGIN.parent}",
        "CUDA_VISIBLE_DEVICES": str(rank),
        "NCCL_PROFILER_PLUGIN": PLUGIN.name if by_name else str(PLUGIN),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(boxes),
        "NCCL_INSPECTOR_CONTROL_DIR": str(boxes / f"control.{rank}"),
        "NCCL_INSPECTOR_PROM_DUMP": "1",
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "0",
    }  # fmt: skip


def _wait(processes: Sequence[subprocess.Popen[bytes]], at_each_look: Callable[[], None]) -> None:
    """Wait for all; when one fails or time is over the others are ended: they would wait for it."""
    end = time.monotonic() + LIMIT_S
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end or any(process.returncode for process in processes):
            for process in processes:
                process.kill()
        at_each_look()
        time.sleep(0.05)


def play(
    library: Path, directory: Path, place: str, by_name: bool, questions: Questions | None
) -> list[str]:
    """Run the ranks; return what those said that failed. None: without RAS."""
    (directory / "boxes").mkdir()
    processes = []
    for rank in range(RANKS):
        (directory / "boxes" / f"control.{rank}").mkdir()
        words = ["tests.nccl.rank", str(library), str(directory), str(rank), str(RANKS), place]
        with (directory / f"log.{rank}").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", *words],
                    env=rank_env(directory / "boxes", rank, place, by_name, questions),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    if questions:
        env = rank_env(directory / "boxes", 0, place, by_name, questions)
        with running(questions.start_neighbours(library, env)):
            _wait(processes, questions.look)
    else:
        _wait(processes, lambda: None)
    return [
        f"rank {rank} ended with {process.returncode}: "
        + (directory / f"log.{rank}").read_text(errors="replace")[-800:].strip()
        for rank, process in enumerate(processes)
        if process.returncode
    ]


def judge(verdict: Verdict, directory: Path, place: str, questions: Questions | None) -> None:
    """Compare what the ranks left."""
    called: list[Counter[str]] = []
    for rank in range(RANKS):
        said = json.loads((directory / f"{rank}.json").read_text())
        calls = [Called(**one) for one in said["called"]]
        called.append(Counter(one.func for one in calls) + Counter(said["unseen"]))
        paths = list((directory / "boxes").glob(f"*_{said['pid']}.box"))
        if not paths:
            verdict.differences.append(f"rank {rank} left no box")
            continue
        fd = os.open(paths[0], os.O_RDONLY)
        try:
            box = read_box(fd, paths[0].stat().st_size, paths[0].stem, alive=False)
        finally:
            os.close(fd)
        judge_rank(verdict, rank, calls, box, told=place == TOLD)
        judge_steps(verdict, rank, said["steps"], box)
    if questions:
        verdict.differences += questions.differences(called)


def try_release(release: str, keep: Path | None) -> Verdict:
    """Return what one release did."""
    verdict = Verdict(release, by_name=release in NAME_ONLY)
    library = fetch(release)
    for place in HOST, TOLD, NETWORK:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
            directory = Path(path)
            questions = Questions(release, directory) if place == HOST else None
            failed = play(library, directory, place, verdict.by_name, questions)
            if failed:
                verdict.differences += failed
            else:
                judge(verdict, directory, place, questions)
            if keep:
                shutil.copytree(directory, keep / f"{release}-{place}", dirs_exist_ok=True)
    return verdict


def spell(one: Verdict) -> str:
    """Return a line for the terminal."""
    return (
        f"NCCL {one.release}: v{one.api}, called {one.called}, counted {one.counted}, "
        f"timed {one.timed}, steps {one.sent}, counted {one.steps}, "
        f"{len(one.differences)} differences"
    )


def main() -> int:
    """Return 1 when a release was counted wrongly, 2 when nothing can be tried."""
    if platform.machine() != "x86_64":
        print("tests/nccl/played/patch.c writes x86-64 code only", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", nargs="+", default=RELEASES)
    parser.add_argument("--table", type=Path, help="write the page of the docs here")
    parser.add_argument("--keep", type=Path, help="copy logs and boxes here")
    options = parser.parse_args()
    verdicts = []
    for release in options.releases:
        began = time.monotonic()
        verdict = try_release(release, options.keep)
        verdicts.append(verdict)
        print(f"{spell(verdict)} ({time.monotonic() - began:.0f} s)", flush=True)
        for line in verdict.differences:
            print(f"  {line}")
    if options.table:
        write_table(options.table, verdicts)
    return 1 if any(verdict.differences for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
