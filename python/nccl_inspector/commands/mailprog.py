# SPDX-License-Identifier: Apache-2.0
"""The command of packaging/nccl-inspector-mail: Slurm's mail of a job's end, with its report.

Exit status 0 means that the mail was sent. For any other status the caller sends Slurm's mail
unchanged.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.settings.config import Config, read_config

POLL_S = 2.0
_BODY_BYTES_MAX = 1 << 20
_RESTARTS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class SlurmMail:
    """The arguments, input and environment of a call of MailProg."""

    subject: str
    to: str
    body: str
    job_id: int
    restart: int


def read_slurm_mail(subject: str, to: str, body: bytes, env: Mapping[str, str]) -> SlurmMail:
    """Return the mail; Slurm tells the number of restarts only for requeued jobs.

    Raises:
        InspectorError: the environment has no valid job id.
    """
    job_id = env.get("SLURM_JOB_ID", "")
    if not JOB_ID.fullmatch(job_id):
        raise InspectorError("SLURM_JOB_ID is not a job id")
    restart = env.get("SLURM_JOB_RESTART_COUNT", "0")
    known = restart.isascii() and restart.isdigit() and int(restart[:9]) <= _RESTARTS_MAX
    text = body.decode("utf-8", "replace")
    return SlurmMail(subject, to, text, int(job_id), int(restart[:9]) if known else 0)


def wait_for(
    find: Callable[[], Card | None], wait_s: float, sleep: Callable[[float], None] = time.sleep
) -> Card | None:
    """Call `find` until it returns a card, for `wait_s` seconds at most; None: it never did."""
    until = time.monotonic() + wait_s
    while (card := find()) is None and time.monotonic() < until:
        sleep(POLL_S)
    return card


def find_for_mail(config: Config, job_id: int, restart: int) -> Card | None:
    """Return the card that the controller's service has stored; None: it has stored none yet."""
    from nccl_inspector.report.stored import stored_card

    return stored_card(job_id, restart, config.store_dir)


@click.command("mailprog", hidden=True)
@click.option("-s", "subject", required=True, help="Subject, as Slurm gives it to its MailProg.")
@click.option("--conf", type=click.Path(path_type=Path), help="Use this configuration file.")
@click.argument("to")
def mailprog(subject: str, conf: Path | None, to: str) -> None:
    """Send Slurm's mail about a job's end with the job's report, for which it waits (mail_wait)."""
    # Imported here, because the agent starts through the same cli.py and makes no pages.
    from nccl_inspector.render.mail import make_mail, send

    config = read_config(conf)
    body = sys.stdin.buffer.read(_BODY_BYTES_MAX)
    mail = read_slurm_mail(subject, to, body, os.environ)
    card = wait_for(lambda: find_for_mail(config, mail.job_id, mail.restart), config.mail_wait_s)
    if card is None:
        raise InspectorError(f"no report of job {mail.job_id} in {config.mail_wait_s:g} s")
    own = (mail.subject, mail.body)
    send(make_mail(card, mail.to, datetime.now(UTC), own), config.sendmail)
