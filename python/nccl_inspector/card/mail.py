# SPDX-License-Identifier: Apache-2.0
"""A card as a mail: the verdict in the subject, the report as text, the page beside it."""

import re
import subprocess
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path

from nccl_inspector.card.html import render_html
from nccl_inspector.card.model import Card
from nccl_inspector.card.text import render_text
from nccl_inspector.card.words import said_job, said_status
from nccl_inspector.columns import cut
from nccl_inspector.errors import InspectorError
from nccl_inspector.printable import plain

SUBJECT_CHARS_MAX = 78  # RFC 5322: a line of a header is not to be longer
SENDMAIL_TIMEOUT_S = 60
_ADDRESS_CHARS_MAX = 2000
# No names, quotes or comments: Python's own reader of those ends in many ways.
_WORD = r"[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+)*"
_ADDRESS = rf"{_WORD}(?:@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*)?"
_ADDRESSES = re.compile(rf" *{_ADDRESS}(?: *, *{_ADDRESS})* *")
_SUBJECT_CHARS_TAKEN = 500
_BODY_CHARS_MAX = 1 << 20


def subject(card: Card) -> str:
    """Return `NCCL DEGRADED (network): job 48213 gpt-pretrain`, cut to what fits."""
    name = f" {card.job.name}" if card.job.name else ""
    return cut(
        plain(f"NCCL {said_status(card.verdict)}: {said_job(card)}{name}"), SUBJECT_CHARS_MAX
    )


def make_mail(
    card: Card, to: str, generated: datetime, own: tuple[str, str] | None = None
) -> EmailMessage:
    """Return a mail without a sender, which sendmail adds; `to`: addresses that commas part.

    `own`: the subject and the body of the mail that the report is added to: Slurm's. People sort
    their mail by its subject, so that stays at the front.

    Raises:
        InspectorError: the addresses cannot be those of a mail.
    """
    if len(to) > _ADDRESS_CHARS_MAX or not _ADDRESSES.fullmatch(to):
        raise InspectorError("not the address of a mail, as amy or amy@example.org")
    text, about = render_text(card), subject(card)
    if own:
        theirs = plain(own[0][:_SUBJECT_CHARS_TAKEN])
        about = f"{theirs}, NCCL {said_status(card.verdict)}"
        text = f"{theirs}\n\n{own[1].strip()[:_BODY_CHARS_MAX]}\n\n{text}"
    message = EmailMessage(SMTP)
    message["To"] = to
    message["Subject"] = about
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    message.add_attachment(
        render_html(card, generated), subtype="html", filename=f"nccl-job-{card.job.job_id}.html"
    )
    return message


def send(message: EmailMessage, sendmail: Path) -> None:
    """Give a mail to the site's sendmail, which finds the addresses in it.

    Raises:
        InspectorError: it is not there, it failed, or it took longer than a minute.
    """
    try:
        done = subprocess.run(
            [sendmail, "-t", "-i"],
            input=message.as_bytes(policy=SMTP.clone(linesep="\n")),
            capture_output=True,
            check=False,
            timeout=SENDMAIL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise InspectorError(f"{sendmail}: {plain(str(err))}") from err
    if done.returncode != 0:
        why = plain(done.stderr.decode("ascii", "replace").strip().replace("\n", "; "))[-300:]
        raise InspectorError(
            f"{sendmail} failed with {done.returncode}: {why or 'it says nothing'}"
        )
