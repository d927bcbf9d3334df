"""Record what Slurm's commands say of jobs of every kind.

python -m tests.tools.record_slurm STATE_DIR writes a file a release below tests/support:
for each command line its output, with the version. It takes three minutes;
NCCL_INSPECTOR_SLURM_TREE chooses the release, as everywhere. (forky's libmariadb3 11.8.9 refuses
slurmdbd's first query; 26.05 was recorded with trixie's in its place.)
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from nccl_inspector.model.jobid import JobName
from nccl_inspector.slurm.accounting import known_columns, question
from nccl_inspector.slurm.command import TIME_FORMAT
from nccl_inspector.slurm.slurmctld import JSON_SINCE
from tests.sandbox import Cluster
from tests.support.recorded_slurm import DELIMITER, folder
from tests.support.sandbox import slurm_jobs


def _commands(cluster: Cluster, job_id: int) -> Iterator[list[str]]:
    shape = "--json" if cluster.layout.release >= JSON_SINCE else "--oneliner"
    yield ["scontrol", shape, "show", "job", str(job_id)]
    columns = known_columns(cluster.run_as("root", ["sacct", "--helpformat"]).stdout)
    yield ["sacct", *question(JobName(job_id), columns, DELIMITER)]


def _record(cluster: Cluster, argv: list[str]) -> str:
    done = cluster.run_as("root", argv, env=TIME_FORMAT)
    text = (
        json.dumps(json.loads(done.stdout), separators=(",", ":"))
        if "--json" in argv
        else done.stdout
    )
    return text.replace(str(cluster.layout.root), "/cluster")


def record(root: Path) -> Path:
    """Start a cluster in `root`, run the jobs, write the file and take the cluster down."""
    cluster = Cluster.up(root, slurm_jobs.options(slurm_jobs.KEEPS))
    try:
        ids = slurm_jobs.submit_all(cluster)
        said = {
            kind: [
                {"argv": argv, "output": _record(cluster, argv)} for argv in _commands(cluster, id_)
            ]
            for kind, id_ in ids.items()
        }
        topology = [{"argv": ["scontrol", "show", "topology"], "output": ""}]
        topology[0]["output"] = _record(cluster, ["scontrol", "show", "topology"])
        text = {"slurm": cluster.layout.slurm, "ids": ids, "said": said | {"topology": topology}}
    finally:
        cluster.down()
    path = folder() / f"{cluster.layout.slurm.rpartition('.')[0]}.json"
    path.write_text(json.dumps(text, indent=1, ensure_ascii=True) + "\n")
    return path


if __name__ == "__main__":
    print(record(Path(sys.argv[1])))
