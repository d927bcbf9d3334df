# SPDX-License-Identifier: Apache-2.0
"""What `sacct` says about a job, read from its text columns, which are right in every release.

Its JSON is not used: in Slurm 22.05 that says failed jobs ended with 0, and it has neither the user
nor the submit line. Names and comments are users' texts and may have newlines. Therefore each
question uses a new random delimiter, and records are told apart only by their number of fields.
"""

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import JobName, parse_job
from nccl_inspector.slurm.command import TIME_FORMAT, ask
from nccl_inspector.slurm.job_record import OVER, JobRecord, Run, StepRecord
from nccl_inspector.slurm.values import (
    Facts,
    exit_facts,
    moment,
    number,
    optional,
    path,
    plain,
    state_word,
    tres_facts,
    whole,
)

# Restarts, FailedNode, StdOut and StdErr came after 22.05: only columns that the release knows are
# asked for.
COLUMNS = (
    "JobIDRaw", "JobID", "User", "UID", "Account", "Partition", "Cluster", "State", "ExitCode",
    "Submit", "Eligible", "Start", "End", "Restarts", "NodeList", "NNodes", "ReqTRES", "AllocTRES",
    "TimelimitRaw", "Reason", "FailedNode", "WorkDir", "StdOut", "StdErr", "SubmitLine", "Comment",
    "AdminComment", "JobName",
)  # fmt: skip
_MINUTE_S = 60

# All releases have these, and none has a text of the user.
STEP_COLUMNS = ("JobIDRaw", "State", "ExitCode", "Start", "End", "NodeList", "NTasks")
STEPS_MAX = 4096
_STEP = re.compile(r"[0-9]{1,10}\.([a-z0-9+]{1,24})")

Row = dict[str, str]


def question(name: JobName, columns: Sequence[str], delimiter: str) -> list[str]:
    """Return sacct's arguments for all attempts of a job, or of all tasks of an array; no steps."""
    return [
        "--parsable", "--noheader", "--duplicates", "--allocations", f"--jobs={name}",
        f"--delimiter={delimiter}", f"--format={','.join(columns)}",
    ]  # fmt: skip


def known_columns(helpformat: str) -> list[str]:
    """Return those of COLUMNS that `sacct --helpformat` lists."""
    known = set(helpformat.split())
    return [one for one in COLUMNS if one in known]


def read_rows(output: str, columns: Sequence[str], delimiter: str) -> list[Row] | None:
    """Return the records; None if the output is not a whole number of them."""
    *cells, rest = output.split(delimiter)
    if rest.strip("\n") or len(cells) % len(columns):
        return None
    rows = []
    for at in range(0, len(cells), len(columns)):
        first, *others = cells[at : at + len(columns)]
        if at and not first.startswith("\n"):
            return None
        rows.append(dict(zip(columns, [first.removeprefix("\n"), *others], strict=True)))
    return rows


def ask_accounting(sacct: Path, name: JobName) -> tuple[list[Row], str]:
    """Return a job's records, the oldest first, and the reason if there are none."""
    said = ask(sacct, "--helpformat")
    if said.status != 0:
        return [], said.words
    columns = known_columns(said.output)
    delimiter = secrets.token_hex(12)
    said = ask(sacct, *question(name, columns, delimiter), env=TIME_FORMAT)
    if said.status != 0:
        return [], said.words
    rows = read_rows(said.output, columns, delimiter)
    if rows is None:
        return [], "its answer is not the columns that were asked for"
    mine = rows_of(rows, name)
    return mine, "" if mine else "it knows no such job"


def rows_of(rows: Sequence[Row], name: JobName) -> list[Row]:
    """Return the records of exactly this job, the oldest first."""
    if name.tasks:
        mine = [row for row in rows if row["JobID"].startswith(f"{name.job_id}_[")]
    elif name.task is not None or name.offset is not None:
        mine = [row for row in rows if row["JobID"] == str(name)]
    else:
        mine = [row for row in rows if row["JobIDRaw"] == str(name.job_id)]
    return sorted(mine, key=lambda row: moment(row["Submit"]) or 0)


def attempts(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the newest job with this number, one for each attempt, the oldest first.

    Slurm may have used the number before. An earlier row is an earlier attempt of the same job if
    it has the same user, submit line and directory as the next row, and ended before that was
    submitted.
    """
    chain = list(rows[-1:])
    for row in reversed(rows[:-1]):
        ended, queued = moment(row["End"]), moment(chain[0]["Submit"])
        same = all(row[key] == chain[0][key] for key in ("UID", "SubmitLine", "WorkDir"))
        if not same or ended is None or queued is None or ended > queued:
            break
        chain.insert(0, row)
    return chain


def identity(row: Row) -> Facts:
    """Return the ids of the job: JobIDRaw is its own, JobID is as users write it."""
    facts: Facts = {"job_id": number(row["JobIDRaw"])}
    if not re.fullmatch("[0-9]+[_+].+", row["JobID"]):
        return facts
    try:
        name = parse_job(row["JobID"])
    except InspectorError:
        return facts
    if name.offset is not None:
        return facts | {"het_job_id": name.job_id, "het_offset": name.offset}
    array = Facts(array_job_id=name.job_id, array_tasks=name.tasks, array_task_id=name.task)
    return facts | array


def _run(row: Row, restart: int) -> Run:
    state = state_word(row["State"])
    codes = re.fullmatch("([0-9]+):([0-9]+)", row["ExitCode"]) if state in OVER else None
    told = number(row.get("Restarts", ""))
    return Run(
        restart=restart if told is None else told,
        state=state,
        exit_code=int(codes[1]) if codes else None,
        signal=int(codes[2]) if codes else None,
        start_s=moment(row["Start"]),
        end_s=moment(row["End"]),
        nodelist=optional(row["NodeList"]),
        num_nodes=number(row["NNodes"]),
        reason="" if row["Reason"] == "None" else optional(row["Reason"]),
        failed_node=optional(row.get("FailedNode", "")),
    )


def runs(rows: Sequence[Row]) -> tuple[Run, ...]:
    """Return the attempts; without the column Restarts they are numbered by their order."""
    return tuple(_run(row, restart) for restart, row in enumerate(attempts(rows)))


def facts(row: Row) -> Facts:
    """Return the facts that are equal for all attempts; `row` is that of the newest attempt."""
    limit = number(row["TimelimitRaw"])
    found: Facts = {
        "name": plain(row["JobName"]),
        "user": plain(row["User"]) or None,
        "uid": number(row["UID"]),
        "account": optional(row["Account"]),
        "partition": optional(row["Partition"]),
        "cluster": optional(row["Cluster"]),
        "submit_s": moment(row["Submit"]),
        "eligible_s": moment(row["Eligible"]),
        "time_limit_s": None if limit is None else limit * _MINUTE_S,
        "submit_line": plain(row["SubmitLine"]) or None,
        "work_dir": path(row["WorkDir"]),
        "stdout_path": row.get("StdOut") or None,
        "stderr_path": row.get("StdErr") or None,
        # Slurm stores it only with AccountingStoreFlags=job_comment, so an empty one says nothing.
        "comment": plain(row["Comment"]) or None,
        "admin_comment": plain(row["AdminComment"]),
    }
    found |= identity(row) | tres_facts(row["AllocTRES"], row["ReqTRES"])
    return {key: value for key, value in found.items() if value is not None}


def read_steps(rows: Sequence[Row], record: JobRecord) -> tuple[StepRecord, ...]:
    """Return the steps of a record's attempt that are over, in order of their begin."""
    found: list[StepRecord] = []
    for row in rows:
        name = _STEP.fullmatch(row["JobIDRaw"])
        state, start_s, end_s = state_word(row["State"]), moment(row["Start"]), moment(row["End"])
        if name is None or state not in OVER or start_s is None or len(found) == STEPS_MAX:
            continue
        if start_s < (record.start_s or 0) or (record.end_s and start_s > record.end_s):
            continue
        codes = exit_facts(row["ExitCode"])
        found.append(
            StepRecord(
                name[1], state, whole(codes.get("exit_code")), whole(codes.get("signal")), start_s,
                end_s, optional(row["NodeList"]), number(row["NTasks"]),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda one: (one.start_s or 0, one.name)))


def ask_steps(sacct: Path, record: JobRecord) -> tuple[StepRecord, ...]:
    """Return the steps of a record's attempt; none: accounting does not know them.

    It is one more question to slurmdbd, so it is for jobs that did not end well.
    """
    delimiter = secrets.token_hex(12)
    words = [
        "--parsable", "--noheader", "--duplicates", f"--jobs={record.job_id}",
        f"--delimiter={delimiter}", f"--format={','.join(STEP_COLUMNS)}",
    ]  # fmt: skip
    said = ask(sacct, *words, env=TIME_FORMAT)
    rows = read_rows(said.output, STEP_COLUMNS, delimiter) if said.status == 0 else None
    return read_steps(rows or (), record)
