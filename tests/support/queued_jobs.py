# SPDX-License-Identifier: Apache-2.0
"""Ended jobs for the controller service: what it finds, a pass of it, what is left."""

import time
from dataclasses import replace
from pathlib import Path

from nccl_inspector.controller.passes import Controller
from nccl_inspector.controller.queue import Queue
from nccl_inspector.controller.report_child import Makers, make_report
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import reading
from nccl_inspector.store.place import index_of
from nccl_inspector.store.queries import JobFilter, find_jobs
from nccl_inspector.summary.codec import encode, encode_process
from tests.support.boxes import MS, BoxOf, CommOf, KeyOf, write_box
from tests.support.summaries import HEAD, read_process


def enqueue(config: Config, job_id: int, more: str = "") -> Path:
    path = config.controller_dir / "queue" / f"{job_id}.{int(time.time() - 60)}000000000"
    path.write_text(f"format=1\njob_id={job_id}\nrestart=0\nname=train\nnodelist=n1\n{more}end\n")
    return path


def summarize(
    config: Config, folder: Path, job_id: int, het_job_id: str = "", restart: int = 0
) -> None:
    """A node's summary, as its agent hands it over."""
    folder.mkdir()
    boxes = [BoxOf([CommOf(7, rank, 2)], [KeyOf(0, [5 * MS] * 20)], procid=rank) for rank in (0, 1)]
    processes = [read_process(write_box(folder, f"0_{n}", box)) for n, box in enumerate(boxes)]
    head = replace(
        HEAD, job_id=job_id, node="n1", nodelist="n1", num_nodes=1, restart=restart,
        het_job_id=het_job_id,
    )  # fmt: skip
    place = config.report_dir / str(job_id)
    place.mkdir()
    data = encode(head, [encode_process(process) for process in processes])
    (place / f"n1.{restart}.nodesummary").write_bytes(data)


def ended_job(config: Config, folder: Path, job_id: int) -> None:
    enqueue(config, job_id)
    summarize(config, folder / str(job_id), job_id)


def run_pass(config: Config, makers: Makers) -> int:
    queue = Queue(config.controller_dir)
    try:
        controller = Controller(config, queue, lambda one: make_report(one, config, makers))
        return controller.one_pass(at_once=True)
    finally:
        queue.close()


def left(config: Config, folder: str = "queue") -> list[str]:
    return sorted(path.name for path in (config.controller_dir / folder).iterdir())


def stored(config: Config) -> list[int]:
    with reading(index_of(config)) as (index, _):
        return sorted(job.job_id for job in find_jobs(index, JobFilter(limit=10_000)))
