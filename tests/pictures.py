"""Pictures of the docs, of jobs on the sandbox cluster: `make pictures` (needs Chromium).

Nothing in them is made up: Slurm, the plugin, the agent and the report are real. NCCL's calls come
from the stand-in, which moves its bytes over loopback at the rates that it is given; so do the
counters of links, which are files that the sandbox has in place of sysfs.
"""

import tempfile
import time
from pathlib import Path

from tests.cluster import Cluster
from tests.cluster.layout import REPO, default_root
from tests.cluster.node import agent_program
from tests.picture import draw, screenshot

PICTURES = REPO / "packaging" / "doc"
SECONDS = 120
SLOW_RANK, SLOW_NODE = 5, "n3"
LOOK_AT_S = 60  # at `top`
SBATCH = ("--nccl-inspector=prom", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1")
WIDTH_PX, HEIGHT_PX = 940, 1010
_DARK = "@media (prefers-color-scheme: dark)"


def submit(cluster: Cluster) -> int:
    """Submit a job of which one rank is 40 ms late before each operation."""
    words = f"--seconds {SECONDS} --sizes 1M,2M --compute-ms 2 --slow-rank {SLOW_RANK}:40"
    return cluster.sbatch(
        *SBATCH,
        "--job-name=train",
        f"--output={cluster.home()}/%j.out",
        f"--wrap=srun {cluster.tool('nccl-standin')} {words}",
        env={"NCCL_STANDIN_CUDA": str(cluster.tool("libcuda.so.1"))},
    )


def draw_page(page: str) -> None:
    """Draw the page of a report, light and dark."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        for name, dark in (("report-page", False), ("report-page-dark", True)):
            # Headless Chromium has no switch for it that lasts.
            path.write_text(page.replace(_DARK, "@media all") if dark else page, "utf-8")
            screenshot(path, PICTURES / f"{name}.png", WIDTH_PX, HEIGHT_PX)


def main() -> None:
    """Run the job and draw what is seen of it."""
    cluster = Cluster.up(default_root())
    try:
        job_id = submit(cluster)
        cluster.wait_for_state(job_id, "RUNNING")
        time.sleep(LOOK_AT_S)
        program = str(agent_program(cluster.layout))
        shown = cluster.node(SLOW_NODE).run([program, "top", str(job_id)])
        draw(shown.stdout, PICTURES / "top.png")
        while not cluster.job(job_id).finished:
            time.sleep(2)
        draw_page(cluster.report(job_id, "--html", "-").stdout)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
