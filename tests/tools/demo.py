"""The whole way of a number, once: sbatch, node_exporter, Prometheus, the end, the report.

Everything is real but NCCL itself and the GPUs (tests/native/standin, tests/native/fakecuda). Exit
status 1 when something is not as this page says it is.
"""

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Callable

from nccl_inspector.model.card import EXIT_WARNING
from tests.sandbox import Cluster
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import JOB_USER, NODES, default_root
from tests.sandbox.prometheus import Sample

RANKS = 8
MANY_OPERATIONS = 36  # of a rank: six steps
SLOW_RANK = 5
SBATCH = ["--nccl-inspector=prom", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1"]
BANDWIDTH = "nccl_bus_bandwidth_gbs"
OPERATIONS = "nccl_collective_operations_total"


class SurpriseError(Exception):
    """Something is not as promised; the text says what."""


class Page:
    """Prints one step after the other, with the time since the beginning."""

    def __init__(self) -> None:
        self.begun = time.monotonic()

    def step(self, text: str) -> None:
        print(f"\n[{time.monotonic() - self.begun:5.1f} s] {text}", flush=True)

    def line(self, text: str = "") -> None:
        print(f"          {text}", flush=True)


def wait_for(what: str, check: Callable[[], bool], timeout: float) -> None:
    """Poll until it is so. Raises SurpriseError when it is not after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not check():
        if time.monotonic() > end:
            raise SurpriseError(f"not after {timeout:.0f} s: {what}")
        time.sleep(0.25)


def start(cluster: Cluster, seconds: int) -> int:
    """Submit the stand-in on 8 tasks, one of them 40 ms late before each operation."""
    command = (
        f"srun {cluster.tool('nccl-standin')} --seconds {seconds} --sizes 1M,2M --compute-ms 2 "
        f"--slow-rank {SLOW_RANK}:40"
    )
    return cluster.sbatch(
        *SBATCH,
        "--job-name=demo",
        f"--output={cluster.home()}/%j.out",
        f"--wrap={command}",
        env={"NCCL_STANDIN_CUDA": str(cluster.tool("libcuda.so.1"))},
    )


def submit(cluster: Cluster, page: Page) -> int:
    """The job of the demo."""
    page.step(f"sbatch {shlex.join(SBATCH)} --wrap 'nccl-standin ...'")
    page.line(f"rank {SLOW_RANK} computes 40 ms longer than its peers before each operation")
    job_id = start(cluster, seconds=22)
    page.line(f"job {job_id}")
    cluster.wait_for_state(job_id, "RUNNING")
    return job_id


class Output:
    """The job's own output, followed."""

    def __init__(self, cluster: Cluster, job_id: int) -> None:
        self.path = cluster.home() / f"{job_id}.out"
        self.shown = 0

    def show_latest(self, page: Page) -> None:
        """Print the last line that has not been shown, if there is one."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines[self.shown :][-1:]:
            page.line(f"job: {line}")
        self.shown = len(lines)


def show_live(cluster: Cluster, page: Page, job_id: int, output: Output) -> None:
    """What Prometheus answers while the job runs. Raises SurpriseError."""
    world = f'{{slurm_job_id="{job_id}",comm_name="standin_world"}}'
    by = "sum by (rank, node, gpu)"

    def ranks() -> dict[str, Sample]:
        """Operations of each rank so far."""
        return {s.labels["rank"]: s for s in cluster.query(f"{by} ({OPERATIONS}{world})")}

    def enough() -> bool:
        """Every rank has been measured for some steps."""
        output.show_latest(page)
        found = ranks()
        return len(found) == RANKS and min(s.value for s in found.values()) >= MANY_OPERATIONS

    wait_for(f"{MANY_OPERATIONS} operations of {RANKS} ranks", enough, 40)
    page.step(f"Prometheus, live ({cluster.layout.prometheus_url()})")
    show_series(cluster, page, f'{{slurm_job_id="{job_id}"}}')
    page.line()
    page.line("rank node gpu    operations   time in collectives, share of the last 8 s")
    busy = cluster.query(f"{by} (rate(nccl_collective_busy_seconds_total{world}[8s]))")
    shares = {sample.labels["rank"]: sample.value for sample in busy}
    for rank, sample in sorted(ranks().items(), key=lambda item: int(item[0])):
        share = shares.get(rank, 0.0)
        page.line(
            f"{rank:>4} {sample.labels['node']:<4} {sample.labels['gpu']:<6} {sample.value:10.0f}"
            f"   {share:6.1%} {'#' * round(share * 100)}"
        )
    page.line(f"(rank {SLOW_RANK} is late, so it has the shortest time: the others wait for it)")
    places = {(s.labels["node"], s.labels["gpu"]) for s in ranks().values()}
    if len(places) != RANKS or not shares or min(shares, key=lambda r: shares[r]) != str(SLOW_RANK):
        raise SurpriseError(f"the {RANKS} ranks do not look like that: {places}, {shares}")


def show_series(cluster: Cluster, page: Page, selector: str) -> None:
    """One series with every label, and how many there are."""
    sample: Sample = cluster.query(f"last_over_time({BANDWIDTH}{selector}[20s])")[0]
    page.line(f"{len(cluster.query(selector))} series of this job. One of them:")
    page.line(f"{BANDWIDTH}{{")
    for name, value in sorted(sample.labels.items()):
        if name != "__name__":
            page.line(f'    {name}="{value}"')
    page.line(f"}} {sample.value:.4g}")


def show_end(cluster: Cluster, page: Page, job_id: int, output: Output) -> None:
    """Follow the job until it ends. Raises SurpriseError when it does not end well."""
    page.step("until the job ends")
    while not cluster.job(job_id).finished:
        output.show_latest(page)
        time.sleep(2)
    state = cluster.job_state(job_id)
    page.line(f"job {job_id}: {state}")
    if state != "COMPLETED":
        raise SurpriseError(f"the job is {state}; its output is {output.path}")


def show_clean(cluster: Cluster, page: Page, job_id: int) -> None:
    """Nothing of the job is left. Raises SurpriseError."""
    page.step("after the end")

    def left() -> list[str]:
        return [
            f"{name}:{path}"
            for name, node in cluster.nodes.items()
            for path in node.run_dir_listing()
            if str(job_id) in path
        ]

    wait_for("no file of the job on any node", lambda: not left(), 20)
    page.line(f"files of job {job_id} on {', '.join(NODES)}: none")
    selector = f'{{slurm_job_id="{job_id}"}}'
    wait_for("its series are stale", lambda: not cluster.query(selector), 15)
    page.line(f"{selector} in Prometheus: no current series")
    states = {name: "+".join(sorted(s.flags)) for name, s in cluster.node_states().items()}
    page.line(f"nodes: {states}")


def show_report(cluster: Cluster, page: Page, job_id: int) -> None:
    """The report. Raises SurpriseError when it does not name the planted rank."""
    page.step(f"nccl-inspector report {job_id}")
    done = cluster.report(job_id)
    print(done.stdout + done.stderr, flush=True)
    named = f"rank {SLOW_RANK} (" in done.stdout.partition("VERDICT")[2].partition("\n\n")[0]
    if done.returncode != EXIT_WARNING or not named:
        raise SurpriseError(f"the report does not name rank {SLOW_RANK}")


def run(page: Page, keep: bool) -> None:
    """The demo. Raises SurpriseError or ClusterError."""
    page.step("a Slurm of four nodes on this machine")
    cluster = Cluster.up(default_root())
    try:
        page.line(f"in {cluster.layout.root}: {', '.join(NODES)}, node_exporters, Prometheus")
        job_id = submit(cluster, page)
        output = Output(cluster, job_id)
        show_live(cluster, page, job_id, output)
        show_end(cluster, page, job_id, output)
        show_clean(cluster, page, job_id)
        show_report(cluster, page, job_id)
        if keep:
            show_how_to_play(cluster, page)
    finally:
        if not keep:
            page.step(f"down: {cluster.down()} processes ended")


def show_how_to_play(cluster: Cluster, page: Page) -> None:
    page.step("the cluster stays up")
    for line in (
        f".venv/bin/python -m tests.sandbox shell    a shell as {JOB_USER}: sinfo, sbatch, srun",
        "  srun --nccl-inspector=prom -N2 --ntasks-per-node=2 --gpus-per-task=1 \\",
        f"    {cluster.tool('nccl-standin')} --seconds 10 --slow-rank 1",
        f"  {cluster.layout.prometheus_url()}/graph   Prometheus",
        ".venv/bin/python -m tests.sandbox status   nodes and addresses",
        "make cluster-down                          ends it",
    ):
        page.line(line)


def main() -> int:
    """0 when all was as promised."""
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    keep = parser.parse_args().keep
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    page = Page()
    try:
        run(page, keep)
    except (SurpriseError, ClusterError) as err:
        print(f"demo: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
