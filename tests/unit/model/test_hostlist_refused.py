# SPDX-License-Identifier: Apache-2.0
"""Texts that Slurm's `scontrol show hostnames` takes for no node list, or reads another way."""

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.slurm.attempt import Answer, Attempt, judge


@pytest.mark.parametrize(
    "text",
    [
        "n[1-2],m[9-3]", "m[9-3]", "n[5,2-1]", "n[10-09]",
        "n[", "n]", "n[1-2", "n[1-2]]", "n[[1]]", "n]1[",
        "n[]", "n[1,]", "n[,1]", "n[a]", "n[-3]", "n[0x1-2]", "n[1-2-3]", "n[1- 2]",
        "n1 n2", "n1\nn2", "n[1-2]\tm1",
    ],
)  # fmt: skip
def test_what_is_no_node_list_is_refused_as_a_whole(text: str) -> None:
    with pytest.raises(InspectorError, match="node list"):
        expand(text)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a,,b", ["a", "b"]),
        (",a,", ["a"]),
        ("n[3-3]", ["n3"]),
        ("n[1-02]", ["n1", "n2"]),
        ("n[1-2][1-2]", ["n11", "n12", "n21", "n22"]),
    ],
)
def test_what_slurm_reads_is_read_alike(text: str, nodes: list[str]) -> None:
    assert expand(text) == nodes


def test_a_range_that_counts_down_does_not_make_a_job_run_elsewhere() -> None:
    said = "JobId=7 JobState=RUNNING Restarts=0 NodeList=m[9-3]\n"
    assert judge(0, said, "", Attempt(7, "m5")) is Answer.ALIVE
    assert judge(0, said.replace("9-3", "1-3"), "", Attempt(7, "m5")) is Answer.ENDED
