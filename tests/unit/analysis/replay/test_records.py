# SPDX-License-Identifier: Apache-2.0
"""One table of the records of all processes: which communicators have the same part in a job."""

import numpy as np

from nccl_inspector.analysis.replay.records import gather
from nccl_inspector.analysis.replay.stages import comm_classes
from tests.support.step_jobs import StepJob

_STEPS = 20


def test_communicators_that_were_made_at_one_moment_are_told_apart_by_their_first_use() -> None:
    # Each rank is in a row of a grid and in a column, of one size. Their ids are chance: by them a
    # row would come before the columns on ranks 0 and 1, and the other one behind them.
    rows: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3))
    columns: tuple[tuple[int, ...], ...] = ((0, 2), (1, 3))
    both = np.zeros(2)
    operations = {
        members: [
            (step + 1, both + step + later, both + step + later + 0.1) for step in range(_STEPS)
        ]
        for members, later in ((rows[0], 0.0), *((one, 0.5) for one in columns), (rows[1], 0.0))
    }
    records = gather(StepJob(operations, float(_STEPS), 4).sources(), 4)
    assert records is not None
    classes = dict(
        zip((one.members for one in records.comms), comm_classes(records).tolist(), strict=True)
    )
    assert classes[rows[0]] == classes[rows[1]]
    assert classes[columns[0]] == classes[columns[1]]
    assert classes[rows[0]] != classes[columns[0]]
