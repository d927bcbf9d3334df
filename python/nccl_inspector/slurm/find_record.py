# SPDX-License-Identifier: Apache-2.0
"""One record of a job from all sources, and which source is believed for which field.

Fields of one attempt come from one source: slurmctld while it knows the attempt, else accounting,
else a node summary. Each other field comes from the first source that has it: accounting,
slurmctld, summary. Accounting is first because a user's text cannot imitate its columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from nccl_inspector.model.jobid import parse_job
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm import accounting
from nccl_inspector.slurm.job_record import (
    ACCOUNTING,
    CONTROLLER,
    OF_ATTEMPT,
    PYSLURM,
    SUMMARY,
    JobRecord,
    Run,
)
from nccl_inspector.slurm.outputpath import fill_in
from nccl_inspector.slurm.slurmctld import ask_controller
from nccl_inspector.slurm.values import Facts
from nccl_inspector.summary.codec import Head

_CLOCKS_APART_S = 300


def find_record(
    job: int | str, config: Config, head: Head | None = None
) -> tuple[JobRecord | None, tuple[str, ...]]:
    """Return Slurm's record of a job (None: not known), and texts about what went wrong.

    `head` is of one of the job's node summaries. It says which attempt is meant, tells the job from
    another job with the same number, and is used alone if nobody else knows the job. sacct is
    expected beside scontrol. A call takes 50 s at most, and usually 0.1 s.

    Raises:
        InspectorError: the text is not a job.
    """
    name, scontrol = parse_job(str(job)), Path(config.scontrol)
    said: dict[str, Facts] = {}
    runs: tuple[Run, ...] = ()
    source, known, why = ask_controller(scontrol, name)
    problems = [f"{source}: {why}"] if why else []
    if known:
        said[source] = known
    rows, why = accounting.ask_accounting(scontrol.with_name("sacct"), name)
    if rows:
        runs = accounting.runs(rows)
        said[ACCOUNTING] = accounting.facts(rows[-1])
    else:
        problems.append(f"{ACCOUNTING}: {why}")
    if head is None:
        return believe(said, runs), tuple(problems)
    cluster = next((facts["cluster"] for facts in said.values() if facts.get("cluster")), "")
    strangers = [
        one for one, facts in said.items() if not _is_of({"cluster": cluster} | facts, runs, head)
    ]
    problems += [f"{one}: what it knows is another job of this number" for one in strangers]
    said = {one: facts for one, facts in said.items() if one not in strangers}
    said[SUMMARY] = _of_head(head)
    return believe(said, runs if ACCOUNTING in said else (), head.restart), tuple(problems)


def _of_head(head: Head) -> Facts:
    found: Facts = {
        "job_id": head.job_id, "uid": head.uid, "user": head.user, "account": head.account,
        "partition": head.partition, "cluster": head.cluster, "nodelist": head.nodelist,
        "num_nodes": head.num_nodes or None, "restart": head.restart,
        "start_s": head.job_start or None,
        "het_job_id": int(head.het_job_id) if head.het_job_id.isdecimal() else None,
        "state": head.state, "exit_code": head.exit_code,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value not in (None, "")}


def _is_of(facts: Facts, runs: Sequence[Run], head: Head) -> bool:
    """Tell whether a source speaks of the summary's job.

    Its user and cluster must be the same, and it must not be submitted after the summary's attempt
    began. Only a requeue, which also counts as a submission, may come later.
    """
    cluster, submitted = facts.get("cluster"), facts.get("submit_s")
    if facts.get("uid", head.uid) != head.uid:
        return False
    if cluster and head.cluster and str(cluster).casefold() != head.cluster.casefold():
        return False
    requeued = facts.get("restart", len(runs) - 1) != 0
    later = isinstance(submitted, int) and submitted > head.start + _CLOCKS_APART_S
    return requeued or not later


def believe(
    said: Mapping[str, Facts], runs: Sequence[Run] = (), attempt: int | None = None
) -> JobRecord | None:
    """Return one record from what each source said; None if no source said anything.

    `attempt`: the attempt that is meant; None: the newest.
    """
    live = next((one for one in (PYSLURM, CONTROLLER) if one in said), "")
    order = [one for one in (ACCOUNTING, live, SUMMARY) if one in said]
    if not order:
        return None
    merged: dict[str, Any] = {}
    for source in reversed(order):
        merged |= {key: value for key, value in said[source].items() if key not in OF_ATTEMPT}
    first, taken = _of_attempt(said, live, runs, attempt)
    rest = [one for one in order if one != first]
    record = JobRecord(
        **merged, **taken, runs=tuple(runs), sources=(*([first] if first else ()), *rest)
    )
    # Some releases name no file of errors where it is that of the output.
    patterns = record.stdout_path, record.stderr_path or record.stdout_path
    out, err = (fill_in(one, record) if one else None for one in patterns)
    return replace(record, stdout_path=out, stderr_path=err)


def _of_attempt(
    said: Mapping[str, Facts], live: str, runs: Sequence[Run], attempt: int | None
) -> tuple[str, dict[str, Any]]:
    """Return the source of the attempt's fields, and these fields."""
    known = said.get(live)
    if known and attempt in (None, known.get("restart")):
        return live, {key: known.get(key) for key in OF_ATTEMPT}
    chosen = [run for run in runs if attempt in (None, run.restart)]
    if chosen:
        return ACCOUNTING, {one.name: getattr(chosen[-1], one.name) for one in fields(Run)}
    told = said.get(SUMMARY, {})
    return SUMMARY if told else "", {key: told.get(key) for key in OF_ATTEMPT}
