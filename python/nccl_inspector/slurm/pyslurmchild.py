# SPDX-License-Identifier: Apache-2.0
"""The program of the child in which pyslurm is imported: its argument is a job id, its output JSON.

It is a process of its own because pyslurm's import ends the process if it finds no usable
slurm.conf.
"""

import json
import sys
from importlib import import_module


def main() -> None:
    """Print slurmctld's record of the job."""
    pyslurm = import_module("pyslurm")
    job = pyslurm.Job.load(int(sys.argv[1]))
    print(json.dumps(job.to_dict(), default=str))


if __name__ == "__main__":
    main()
