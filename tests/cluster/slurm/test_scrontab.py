# SPDX-License-Identifier: Apache-2.0
"""Jobs of a crontab."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, Cluster, Options, wait_until
from tests.support.sandbox.own_cluster import brought_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]
ENABLED = "NCCL_INSPECTOR_ENABLE=1"


@pytest.fixture
def cluster(cluster_dir: Path) -> Iterator[Cluster]:
    options = Options(agents=False, monitoring=False, slurm_lines=("ScronParameters=enable",))
    with brought_up(cluster_dir, options) as made:
        if made.run_as("root", ["which", "scrontab"]).returncode != 0:
            pytest.skip("this Slurm has no scrontab")
        yield made
        made.run_as(JOB_USER, ["scrontab", "-r"])


@pytest.mark.case("Options", "scrontab takes the option, says that it has no effect; srun's has")
def test_a_crontab_is_told_that_the_option_has_no_effect_and_srun_in_it_is_measured(
    cluster: Cluster,
) -> None:
    home = cluster.home()
    script = home / "each-minute"
    script.write_text(
        "#!/bin/sh\n"
        "exec >$SLURM_JOB_ID.part 2>&1\n"
        "env | grep NCCL_INSPECTOR_ENABLE= || echo the script is not measured\n"
        "srun --nccl-inspector=report env | grep NCCL_INSPECTOR_ENABLE=\n"
        "mv $SLURM_JOB_ID.part $SLURM_JOB_ID.done\n"
    )
    script.chmod(0o755)
    table = f"#SCRON --nccl-inspector=report --chdir={home}\n* * * * * {script}\n"
    done = cluster.run_as(JOB_USER, ["scrontab", "-"], stdin=table)
    assert done.returncode == 0, done.stderr
    assert "--nccl-inspector has no effect in a crontab" in done.stderr
    wait_until(lambda: any(home.glob("*.done")), 100, "the job of the crontab has run", 1)
    text = next(home.glob("*.done")).read_text()
    assert text.splitlines() == ["the script is not measured", ENABLED]
