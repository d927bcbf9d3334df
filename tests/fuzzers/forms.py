"""Every form of output that a card or a view has, and what none of them may have in it."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email import message_from_bytes
from email.policy import default
from functools import cache
from html.parser import HTMLParser

from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import StaticPool

from nccl_inspector.analysis.history.compare import compare
from nccl_inspector.analysis.history.slow_nodes import score_nodes
from nccl_inspector.model.card import Card
from nccl_inspector.render.comment import BYTES_MAX, make_comment, read_comment, render_summary
from nccl_inspector.render.html import render_html
from nccl_inspector.render.json import card_from_json, to_json
from nccl_inspector.render.mail import make_mail
from nccl_inspector.render.text import render_text
from nccl_inspector.store.card_rows import nodes_of, rows_of
from nccl_inspector.store.index import put
from nccl_inspector.store.queries import JobFilter, find_jobs, last_jobs
from nccl_inspector.store.tables import METADATA
from nccl_inspector.store.text import difference_text, jobs_text, nodes_text

NOW = datetime(2026, 8, 2, 17, tzinfo=UTC)
TO = "amy@example.org"
_PAINT = re.compile(r"\x1b\[[0-9;]*m")
# What moves a cursor, ends a line, turns the direction of writing, or is half a character.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_TAGS = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "small",
        "section",
        "strong",
        "p",
        "dl",
        "dt",
        "dd",
        "ol",
        "ul",
        "li",
        "div",
        "span",
        "b",
        "i",
        "figure",
        "figcaption",
        "svg",
        "rect",
        "line",
        "polyline",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "footer",
        "text",
        "path",
        "g",
        "circle",
        "details",
        "summary",
        "code",
        "pre",
        "a",
        "br",
        "caption",
    ]
)
_RISKY = frozenset({"src", "href", "action", "data", "srcset", "formaction", "xlink:href"})
_NO_PLACE = re.compile(r"(?<![a-z])(?:nan|inf)(?![a-z])")
_HEADERS = frozenset({"to", "subject", "auto-submitted", "mime-version", "content-type",
                      "content-transfer-encoding", "content-disposition"})  # fmt: skip


class UnsafeOutputError(AssertionError):
    """A form has something in it that it must not have."""


def expect(is_right: bool, form: str, what: str) -> None:
    """Raise UnsafeOutputError where it is not."""
    if not is_right:
        raise UnsafeOutputError(f"{form}: {what}")


def check_text(form: str, text: str) -> None:
    """Check lines for a terminal."""
    found = _UNSAFE.search(text)
    expect(found is None, form, f"{found[0]!a}" if found else "")


class _Page(HTMLParser):
    def __init__(self, form: str) -> None:
        super().__init__()
        self._form = form

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        expect(tag in _TAGS, self._form, f"a tag {tag!a:.40}")
        for name, value in attrs:
            expect(name not in _RISKY and not name.startswith("on"), self._form, f"a {name!a:.40}")
            if name in ("points", "d", "x", "y", "width", "height", "x1", "x2", "y1", "y2"):
                expect(not _NO_PLACE.search(value or ""), self._form, f"{name}={value!a:.80}")


def check_page(form: str, text: str) -> None:
    """Check a page for a browser: only tags of ours, nothing that runs, fetches or has no place."""
    check_text(form, text)
    page = _Page(form)
    page.feed(text)
    page.close()


def _check_mail(raw: bytes) -> None:
    head, _, body = raw.partition(b"\n\n")
    expect(head.isascii(), "mail", "a header that is not ASCII")
    message = message_from_bytes(head + b"\n\n", policy=default)
    names = {name.lower() for name in message}
    expect(names <= _HEADERS, "mail", f"headers {sorted(names - _HEADERS)}")
    subjects = message.get_all("subject", [])
    expect(len(subjects) == 1, "mail", "not one subject")
    check_text("mail's subject", str(subjects[0]).replace("\n", "?"))
    expect(message["to"] == TO, "mail", f"to {message['to']!a:.60}")
    expect(b"\0" not in body, "mail", "a NUL")


@cache
def _index() -> Connection:
    index = create_engine("sqlite://", poolclass=StaticPool).connect()
    METADATA.create_all(index)
    index.commit()
    return index


def _store(card: Card) -> None:
    """Put the card into an index, and show what the index says."""
    index = _index()
    index.begin()
    try:
        put(index, rows_of(card))
        jobs = find_jobs(index, JobFilter("", "", "", None, 10))
        check_text("history", jobs_text(jobs, True, True))
        check_text("nodes", nodes_text(score_nodes(last_jobs(index, 10)), 1, True))
    finally:
        index.rollback()


def _json(card: Card) -> None:
    text = to_json(card, NOW)
    expect(text.isascii() and text.count("\n") == 1, "json", "not one line of ASCII")
    again = to_json(card_from_json(text), NOW)
    expect(json.loads(again) == json.loads(text), "json", "not the same when it is read again")


def check_card(card: Card, beside: Sequence[Card] = ()) -> str:
    """Make and check every form of a card; return its verdict and the rules of its findings."""
    for everything in (False, True):
        check_text("text", render_text(card, everything))
    painted = render_text(card, True, True)
    check_text("coloured text", _PAINT.sub("", painted))
    check_page("html", render_html(card, NOW))
    # A page takes time: one of the two mails, which of them the input decides.
    own = ("Slurm Job_id=7 Name=x Ended", "body") if len(painted) % 2 else None
    _check_mail(make_mail(card, TO, NOW, own))
    comment = make_comment(card)
    expect(len(comment) <= BYTES_MAX and comment.isascii(), "comment", "too long, or not ASCII")
    check_text("comment", comment.replace("\n", "\0"))
    check_text("show", render_summary(read_comment(comment)))
    _json(card)
    _store(card)
    for other in (card, *beside):
        found = compare(card, other, set(nodes_of(card)), set(nodes_of(other)))
        check_text("compare", difference_text(found, True))
    rules = sorted({one.rule for one in card.findings})
    reasons = sorted(card.data_quality.refused)
    return f"{card.verdict.status} {card.verdict.cause} {' '.join(rules)} {' '.join(reasons)}"
