# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin under a fake Slurm that prints what the plugin asks of it."""

import subprocess
from pathlib import Path

from tests.support.repository import BUILD

PLUGIN = BUILD / "spank_nccl_inspector.so"
FAKE_SLURM = BUILD / "host" / "fake_slurm"

OPTION_VARIABLE = "SLURM_SPANK__SLURM_SPANK_OPTION_nccl_inspector_nccl_inspector"
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
OURS = {
    "NCCL_PROFILER_PLUGIN",
    "NCCL_INSPECTOR_ENABLE",
    "NCCL_INSPECTOR_RUN_DIR",
    "NCCL_INSPECTOR_CONTROL_DIR",
    "NCCL_INSPECTOR_PROM_DUMP",
    "NCCL_INSPECTOR_JSON",
    "NCCL_INSPECTOR_PHASES",
    "NCCL_INSPECTOR_HOST_TIME",
    "NCCL_INSPECTOR_NET",
    "NCCL_INSPECTOR_BUDGET_PERCENT",
    INTERVAL,
    "NCCL_INSPECTOR_ENABLE_P2P",
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES",
    "NCCL_RAS_ADDR",
    "NCCL_INSPECTOR_SET_BY_SLURM",
}


class Host:
    """What one run of the fake Slurm printed."""

    def __init__(
        self, *args: str, environ: dict[str, str] | None = None, name: str = "sbatch"
    ) -> None:
        done = subprocess.run(
            [name, PLUGIN, *args],
            executable=FAKE_SLURM,
            env=environ or {},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        self.code = done.returncode
        self.lines = done.stdout.splitlines()
        assert done.stderr == ""
        assert self.code in (0, 255), done.stdout

    def starting(self, prefix: str) -> list[str]:
        return [line.removeprefix(prefix) for line in self.lines if line.startswith(prefix)]

    @property
    def env(self) -> dict[str, str]:
        """The environment that the job's tasks get."""
        return dict(line.split("=", 1) for line in self.starting("env "))

    @property
    def own_env(self) -> dict[str, str]:
        """The environment of the command itself, as it hands it on."""
        return dict(line.split("=", 1) for line in self.starting("own "))

    @property
    def messages(self) -> list[str]:
        return self.starting("error: ") + self.starting("info: ")

    @property
    def told_hooks(self) -> list[str]:
        return self.starting("job_control_setenv ")


def submit(
    *args: str,
    environ: dict[str, str] | None = None,
    by: str = "allocator",
    name: str = "sbatch",
) -> Host:
    return Host(f"--context={by}", "--word=conf=/nonexistent", *args, environ=environ, name=name)


MANIFEST = {
    "format": "1", "job_id": "42", "partition": "gpu", "num_nodes": "2", "gpus": "0,1,2,3",
    "het_job_id": "",
}  # fmt: skip


class Node:
    """A node whose prolog has run for some jobs."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def prolog(self, job: int) -> Path:
        raw = self.run_dir / "jobs" / str(job) / "raw"
        raw.mkdir(parents=True)
        self.write_manifest(job, MANIFEST | {"job_id": str(job)})
        return raw

    def write_manifest(self, job: int, words: dict[str, str]) -> None:
        text = "".join(f"{key}={value}\n" for key, value in words.items())
        (self.run_dir / "jobs" / str(job) / "manifest").write_text(text + "end\n")

    def step(
        self,
        *args: str,
        job: int = 42,
        env: dict[str, str] | None = None,
        conf: str = "/nonexistent",
    ) -> Host:
        host = Host(
            "--context=remote",
            f"--word=run_dir={self.run_dir}",
            f"--word=conf={conf}",
            f"--job={job}",
            *[f"--env={name}={value}" for name, value in (env or {}).items()],
            *args,
        )
        assert host.code == 0
        assert "slurm_spank_user_init -> 0" in host.lines
        return host
