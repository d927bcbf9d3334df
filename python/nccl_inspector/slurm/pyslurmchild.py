# SPDX-License-Identifier: Apache-2.0
"""The process in which pyslurm is imported: its argument is a job's id, its output JSON.

One of its own, because without a slurm.conf that it can use the import ends the process.
"""

import json
import sys
from importlib import import_module


def main() -> None:
    """Print the job as slurmctld has it."""
    pyslurm = import_module("pyslurm")
    job = pyslurm.Job.load(int(sys.argv[1]))
    print(json.dumps(job.to_dict(), default=str))


if __name__ == "__main__":
    main()
