# SPDX-License-Identifier: Apache-2.0
"""Write the list of suspect nodes that users may read, from the index of all jobs; in a child."""

from nccl_inspector.analysis.history.slow_nodes import score_nodes
from nccl_inspector.controller.outcome import DONE, LATER, Outcome
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import reading
from nccl_inspector.store.place import index_of
from nccl_inspector.store.queries import last_jobs
from nccl_inspector.store.suspects import (
    JOBS_LOOKED_AT,
    SuspectList,
    suspects_of,
    write_suspects,
)
from nccl_inspector.summary.job_objects import object_store


def list_suspects(config: Config, now_s: float) -> Outcome:
    """Judge the nodes of the latest jobs and replace the list; LATER: it was not written."""
    place = index_of(config)
    if not place.is_there:
        return Outcome(DONE)
    try:
        with reading(place) as (index, _all_jobs):
            jobs = last_jobs(index, JOBS_LOOKED_AT, place.cluster)
        listed = SuspectList(now_s, len(jobs.jobs), suspects_of(score_nodes(jobs)))
        write_suspects(config.store_dir, listed, object_store(config))
    except OSError as err:
        return Outcome(LATER, f"{err.filename or config.store_dir}: {err.strerror}")
    except InspectorError as err:
        return Outcome(LATER, str(err))
    return Outcome(DONE)
