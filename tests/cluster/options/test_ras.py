# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector ras`: each step of each job on a node is asked for itself."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.support.command_line import COMMAND
from tests.support.ras_service import recorded
from tests.support.repository import PYTHON_DIR
from tests.support.sandbox import jobs

# Answers as the service of a rank that is this process, where NCCL_RAS_ADDR or the argument says.
SERVICE = """
import json, os, socketserver, sys
answer = json.load(open(sys.argv[1]))
for rank in answer["communicators"][0]["ranks"]:
    rank["pid"] = os.getpid()

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if line.startswith(b"STATUS"):
                self.wfile.write(json.dumps(answer).encode())
                return
            self.wfile.write(b"SERVER PROTOCOL 2\\n" if line.startswith(b"CLIENT") else b"OK\\n")

host, _, port = os.environ["NCCL_RAS_ADDR"].rpartition(":")
socketserver.TCPServer.allow_reuse_address = True
with socketserver.TCPServer((host, int(port)), Handler) as server:
    print("address", os.environ["NCCL_RAS_ADDR"], "pid", os.getpid(), flush=True)
    server.serve_forever()
"""
WORDS = "-N1", "-w", "n1", "--mem=200", "--nccl-inspector=report"

Start = Callable[..., int]


@pytest.fixture
def start(healthy_cluster: Cluster, tmp_path: Path) -> Start:
    """Submit a job whose steps have a service each, and wait until they listen."""
    program, answer = tmp_path / "service.py", tmp_path / "answer.json"
    program.write_text(SERVICE)
    answer.write_bytes(recorded("healthy-2.32.3"))
    for path in (tmp_path, *tmp_path.parents):
        path.chmod(path.stat().st_mode | 0o755)

    def submit(steps: int) -> int:
        step = f"srun --overlap -n1 python3 {program} {answer} &\n"
        job_id = jobs.submit(healthy_cluster, *WORDS, f"-n{steps}", script=f"{step * steps}wait")
        wait_until(
            lambda: jobs.output(healthy_cluster, job_id).count("address") == steps, 60, "services"
        )
        return job_id

    return submit


def said(cluster: Cluster, job_id: int) -> dict[str, int]:
    """What the steps of a job printed: the process by its address."""
    lines = [line.split() for line in jobs.output(cluster, job_id).splitlines()]
    return {words[1]: int(words[3]) for words in lines if words[:1] == ["address"]}


def asked(cluster: Cluster, job: str) -> dict[str, int]:
    """The process of each answer for a job or step by its address; {} if there is none."""
    command = ["env", f"PYTHONPATH={PYTHON_DIR}", *COMMAND, "ras", "--seconds", "0", "--json", job]
    done = cluster.node("n1").run(command)
    if done.returncode:
        assert "processes of another job answer there" in done.stderr, done.stderr
        return {}
    found = json.loads(done.stdout)["communicators"]
    return {one["address"]: one["ranks"][0]["pid"] for one in found}


@pytest.mark.long
def test_two_jobs_with_two_steps_each_on_a_node_are_told_apart(
    healthy_cluster: Cluster, start: Start
) -> None:
    cluster = healthy_cluster
    first, second = start(2), start(2)
    try:
        addresses = said(cluster, first), said(cluster, second)
        assert len(addresses[0].keys() | addresses[1].keys()) == 4
        assert asked(cluster, str(first)) == addresses[0]
        assert asked(cluster, str(second)) == addresses[1]
        steps = [asked(cluster, f"{first}.{step}") for step in range(2)]
        assert steps[0] != steps[1]
        assert steps[0] | steps[1] == addresses[0]
    finally:
        cluster.run_as(JOB_USER, ["scancel", str(first), str(second)])


def test_a_job_that_names_the_address_of_another_gets_no_answer(
    healthy_cluster: Cluster, start: Start
) -> None:
    cluster = healthy_cluster
    honest = start(1)
    (address,) = said(cluster, honest)
    liar = jobs.submit(
        cluster, *WORDS, script=f"export NCCL_RAS_ADDR={address}; srun sh -c 'echo here; sleep 60'"
    )
    try:
        wait_until(lambda: "here" in jobs.output(cluster, liar), 60, "the other job")
        assert asked(cluster, str(liar)) == {}
        assert asked(cluster, str(honest)) == said(cluster, honest)
    finally:
        cluster.run_as(JOB_USER, ["scancel", str(honest), str(liar)])
