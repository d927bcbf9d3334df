# SPDX-License-Identifier: Apache-2.0
"""Write a job's verdict into its AdminComment, but never over a comment of somebody else."""

import re
from enum import Enum
from pathlib import Path

from nccl_inspector.slurm.command import ask

COMMENT_MAX = 512
OURS = "NCCL "
_ANSWER_S = 20
_THERE = re.compile(r"\bAdminComment=(.*?)(?= [A-Z][A-Za-z:/]*=|$)", re.MULTILINE)
# slurmctld 22.05 changes no job that is over. No release changes a job that it has forgotten.
_OVER = "Job has already finished", "Invalid job id specified"
# Only a change of the site's configuration can help, so the report does not wait for it.
_NOT_ALLOWED = re.compile(
    "permission denied|not allowed|Invalid user|not running a supported accounting|privilege|"
    "accounting storage is disabled|No such file or directory",
    re.IGNORECASE,
)


class Refusal(Enum):
    """Whether the comment was written; if not, whether another try may help."""

    NONE = "none"
    LATER = "later"
    NEVER = "never"


_IN_USE = Refusal.NEVER, "AdminComment is in use by others, so it stays"


def plain_comment(text: str) -> str:
    """Return our comment without characters that confuse parsers of Slurm's output."""
    words = " ".join(
        "".join(c if c.isascii() and c.isprintable() and c not in "'\"|\\" else "?" for c in word)
        for word in text.split()
    )
    return (words if words.startswith(OURS) else OURS + words)[:COMMENT_MAX]


def _say(scontrol: Path, *words: str) -> tuple[int, str]:
    """Return a command's exit status and its output; after a failure, its error text."""
    said = ask(scontrol, *words, seconds=_ANSWER_S)
    return said.status, said.output if said.status == 0 else said.errors or said.output


def _is_others(comment: str) -> bool:
    # sacctmgr makes all letters lower-case.
    return bool(comment) and not comment.upper().startswith(OURS)


def write_comment(
    scontrol: Path, job_id: int, text: str, array_task: str = ""
) -> tuple[Refusal, str]:
    """Write the comment; return how it went, and why not as text.

    slurmctld writes it if it accepts that; otherwise sacctmgr writes it into the accounting
    database. sacct and sacctmgr are those next to `scontrol`. A comment of somebody else stays.

    `array_task`: the task as text, for example `810_3`. It is needed because the last task of an
    array has the job id of the whole array, and Slurm would change all tasks.
    """
    words, job = f"AdminComment={plain_comment(text)}", array_task or str(job_id)
    status, said = _say(scontrol, "--oneliner", "show", "job", job)
    if status == 0:
        if any(_is_others(found.strip()) for found in _THERE.findall(said)):
            return _IN_USE
        status, said = _say(scontrol, "update", f"JobId={job}", words)
    if status != 0 and any(one in said for one in _OVER):
        status, said = _say(
            scontrol.with_name("sacct"), "--noheader", "--parsable2", "--allocations",
            f"--jobs={job}", "--format=AdminComment",
        )  # fmt: skip
        if status == 0 and _is_others(said.strip()):
            return _IN_USE
        if status == 0:
            sacctmgr = scontrol.with_name("sacctmgr")
            status, said = _say(
                sacctmgr, "-i", "modify", "job", "where", f"jobid={job}", "set", words
            )
    if status == 0:
        return Refusal.NONE, ""
    why = "".join(c if c.isprintable() else " " for c in said.strip()[:200])
    if _NOT_ALLOWED.search(said):
        return Refusal.NEVER, f"no AdminComment: {why}"
    return Refusal.LATER, f"no AdminComment yet: {why}"
