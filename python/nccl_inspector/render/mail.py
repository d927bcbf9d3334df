# SPDX-License-Identifier: Apache-2.0
"""A card as a mail: the verdict is the subject, the report the text, and the page an attachment.

The headers are made here of a checked alphabet and by no library: users choose the names of jobs,
and Python's email package has put what it decoded of them into headers (CVE-2024-6923). Without `?`
there is no encoded word, without control characters no second line, and what is not ASCII is not
there.
"""

import re
import subprocess
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card
from nccl_inspector.model.table_columns import cut
from nccl_inspector.model.wording import briefly_cost, said_job, said_status, said_who
from nccl_inspector.render.html import render_html
from nccl_inspector.render.text import render_text
from nccl_inspector.system.printable import plain

SENDMAIL_TIMEOUT_S = 60
_SUBJECT_CHARS_TAKEN = 500
_BODY_CHARS_MAX = 1 << 20
_POLICY = SMTP.clone(linesep="\n")  # what sendmail reads
SUBJECT_CHARS_MAX = 78  # RFC 5322: a line of a header is not to be longer
LINE_CHARS_MAX = 900  # and never longer than 998
_MORE_CHARS_MIN = 8  # with less room, who it was and the cost are left out
_ADDRESSES_MAX = 50
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9 .,:;=+*/%#@!&()\[\]<>_-]")
# No names, quotes, comments or programs: a part before the @ and a host, or an account alone.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LOCAL = r"[A-Za-z0-9_](?:[A-Za-z0-9_+=-]|\.(?!\.|@|$)){0,63}"
_ADDRESS = re.compile(rf"{_LOCAL}(?:@{_LABEL}(?:\.{_LABEL}){{0,9}})?")


def header_text(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """Return a text for a header: ASCII of the alphabet, `_` for anything else, one line."""
    return cut(_NOT_ALLOWED.sub("_", text), min(chars_max, LINE_CHARS_MAX))


def read_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses that commas separate in a text.

    Raises:
        InspectorError: one of them is not an address as `amy` or `amy@example.org`.
    """
    found = tuple(one.strip(" ") for one in text.split(",", _ADDRESSES_MAX))
    if len(found) > _ADDRESSES_MAX or not all(map(_ADDRESS.fullmatch, found)):
        raise InspectorError("not a mail address such as amy or amy@example.org")
    return found


def header_lines(to: tuple[str, ...], subject: str) -> bytes:
    """Return the lines of the headers that are ours, each with its end."""
    lines = (
        "To: " + ",\n ".join(to),
        f"Subject: {header_text(subject)}",
        "Auto-Submitted: auto-generated",
    )
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _verdict(card: Card, room: int) -> str:
    """Return `DEGRADED (network), node n13, cost 33 s (0.4%)`: what, who and the cost."""
    status = said_status(card.verdict)
    more = ", ".join(one for one in (said_who(card), briefly_cost(card.verdict)) if one)
    left = room - len(status) - 2
    return f"{status}, {cut(more, left)}" if more and left >= _MORE_CHARS_MIN else status


def subject(card: Card) -> str:
    """Return `NCCL HUNG, rank 2 (n2 GPU0), cost 25 s: job 48213 gpt-pretrain`.

    It is cut to the allowed length: first the job's name, then cost and who.
    """
    job, name = said_job(card), f" {card.job.name}" if card.job.name else ""
    verdict = _verdict(card, SUBJECT_CHARS_MAX - len("NCCL : ..") - len(job))
    return header_text(f"NCCL {verdict}: {job}{name}", SUBJECT_CHARS_MAX)


def make_mail(
    card: Card, to: str, generated: datetime, own: tuple[str, str] | None = None
) -> bytes:
    """Return a mail without a sender, which sendmail adds; `to`: addresses separated by commas.

    `own`: subject and body of Slurm's mail, to which the report is added. People sort their mail by
    its subject, so that stays in front. Lines end as sendmail reads them.

    Raises:
        InspectorError: the addresses are not valid.
    """
    addresses = read_addresses(to)
    text, about = render_text(card), subject(card)
    if own:
        about = f"{own[0][:_SUBJECT_CHARS_TAKEN]}, NCCL {_verdict(card, SUBJECT_CHARS_MAX)}"
        body = own[1].strip()[:_BODY_CHARS_MAX]
        text = f"{plain(own[0][:_SUBJECT_CHARS_TAKEN])}\n\n{body}\n\n{text}"
    # The email package only makes the parts and their headers, which contain no user's text.
    message = EmailMessage(_POLICY)
    message.set_content(text.encode("utf-8", "replace").decode())  # user's text may be invalid
    message.add_attachment(
        render_html(card, generated), subtype="html", filename=f"nccl-job-{card.job.job_id}.html"
    )
    return header_lines(addresses, about) + message.as_bytes()


def send(message: bytes, sendmail: Path) -> None:
    """Give a mail to the site's sendmail, which takes the addresses from it.

    Raises:
        InspectorError: sendmail is missing, failed, or took longer than a minute.
    """
    try:
        done = subprocess.run(
            [sendmail, "-t", "-i"],
            input=message,
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
