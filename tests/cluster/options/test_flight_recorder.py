# SPDX-License-Identifier: Apache-2.0
"""`fr` and `fr_pipe`: what tasks get, and a dump that is asked for while the job runs."""

import pickle
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, Cluster, wait_until
from tests.support.command_line import COMMAND
from tests.support.flight_dumps import dump, entry
from tests.support.repository import PYTHON_DIR
from tests.support.sandbox import jobs

FIRST_WITH_END_TIME = 23, 2
ENVIRONMENT = "env | grep ^TORCH | sort; exit 0"
# What PyTorch does with the variables: a pipe, and a dump when a byte comes. It says its rank's
# operation is in flight since the epoch.
RECORDER = """
import os, shutil, sys, time
rank = os.environ["SLURM_PROCID"]
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
os.mkfifo(pipe)
fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
while not os.read(fd, 128):
    time.sleep(0.1)
shutil.copy(sys.argv[1], os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank)
"""


def torch_variables(cluster: Cluster, option: str) -> dict[str, str]:
    argv = ["srun", "-N1", f"--nccl-inspector={option}", "sh", "-c", ENVIRONMENT]
    done = cluster.run_as(JOB_USER, argv)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_each_step_has_names_of_its_own_for_its_dumps(healthy_cluster: Cluster) -> None:
    assert torch_variables(healthy_cluster, "prom") == {}
    found = torch_variables(healthy_cluster, "prom,fr")
    name = found["TORCH_FR_DUMP_TEMP_FILE"]
    assert name.startswith("nccl-inspector-")
    assert name.endswith(".0-fr-rank_")
    assert not [one for one in found if "PIPE" in one]


def test_a_running_job_is_asked_for_its_dumps(healthy_cluster: Cluster, tmp_path: Path) -> None:
    cluster = healthy_cluster
    waiting = dump([entry(0, 1, state="started")], {"0": [0, 1]})
    dumped, program = tmp_path / "dumped", tmp_path / "recorder.py"
    dumped.write_bytes(pickle.dumps(waiting))
    program.write_text(RECORDER)
    for path in (tmp_path, *tmp_path.parents):
        path.chmod(path.stat().st_mode | 0o755)
    job_id = jobs.submit(
        cluster, "-N1", "-n2", "--nccl-inspector=prom,fr,fr_pipe",
        script=f"srun python3 {program} {dumped}; ls nccl-inspector-$SLURM_JOB_ID.0-fr-rank_*",
    )  # fmt: skip
    command = ["env", f"PYTHONPATH={PYTHON_DIR}", *COMMAND, "flight", "--dump", "--job"]
    wait_until(
        lambda: any("asked 2 processes" in node.run([*command, str(job_id)]).stdout
                    for node in cluster.nodes.values()),
        60,
        "two pipes",
    )  # fmt: skip
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    names = jobs.output(cluster, job_id).split()
    assert names == [f"nccl-inspector-{job_id}.0-fr-rank_{rank}" for rank in range(2)]


# Is there so many seconds, and prints when each byte came, in seconds since the job's start.
LISTENER = """
import os, sys, time
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + os.environ["SLURM_PROCID"] + ".pipe"
os.mkfifo(pipe)
fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
begun = time.time()
while time.time() < begun + float(sys.argv[1]):
    for _ in os.read(fd, 128):
        print("asked", round(time.time() - begun), flush=True)
    time.sleep(0.1)
print("ended by itself", flush=True)
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_is_asked_once_before_its_time_limit_and_goes_on(
    healthy_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = healthy_cluster
    program = tmp_path / "listener.py"
    program.write_text(LISTENER)
    for path in (tmp_path, *tmp_path.parents):
        path.chmod(path.stat().st_mode | 0o755)
    words = ["-N1", "-n1", "--nccl-inspector=report,fr,fr_pipe"]
    script = f"srun python3 {program} 57"
    short = jobs.submit(cluster, *words, "--time=1", script=script)
    endless = jobs.submit(cluster, *words, script=script)  # the partition's limit, an hour
    for job_id in (short, endless):
        assert cluster.wait_for_job(job_id, 180).state == "COMPLETED"
    assert jobs.output(cluster, endless).splitlines() == ["ended by itself"]
    *asked, last = jobs.output(cluster, short).splitlines()
    assert last == "ended by itself"
    if cluster.layout.release < FIRST_WITH_END_TIME:
        assert asked == [], "this Slurm does not tell the end"
        return
    (line,) = asked
    assert 40 <= int(line.split()[1]) <= 50  # three quarters of the limit, less what starting took
