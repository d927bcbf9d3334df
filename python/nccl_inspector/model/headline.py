# SPDX-License-Identifier: Apache-2.0
"""The sentence that comes first: what happened to a job, who it was, and what it cost.

It is the same in the text, the page, the mail, the AdminComment, `history` and JSON. It needs no
word that a user of NCCL does not know: no medians, no gaps, no T.
"""

from nccl_inspector.model.card import DEGRADED, INFO, STRAGGLER, Card, Finding, Job, Period
from nccl_inspector.model.wording import clock, elapsed, leading_finding, percent, said_cost

# A time that begins this close to the job's begin, or ends this close to its end, is said without
# that end: the first and the last operations of a job are never those of its first and last second.
_EDGE_SHARE = 0.05
_EDGE_S = 60.0
# Names keep their case.
_FIRST_WORDS = frozenset(
    {
        "a", "all", "an", "at", "half", "it", "links", "no", "node", "nodes", "none", "nothing",
        "perhaps", "port", "rank", "ranks", "slow", "stops", "the", "this", "time", "transfers",
        "whether",
    }
)  # fmt: skip


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _when(period: Period | None, job: Job) -> str:
    """Return `, from 12:03:45 on`; empty: for all of the job, or it is not known when."""
    if period is None or job.start_s is None or job.end_s is None:
        return ""
    edge_s = max(_EDGE_S, _EDGE_SHARE * (job.end_s - job.start_s))
    since_begin = period.start_s - job.start_s < edge_s
    until_end = job.end_s - period.end_s < edge_s
    form = "%H:%M:%S" if job.end_s - job.start_s < 86400 else "%Y-%m-%d %H:%M:%S"
    begin, end = clock(period.start_s, form), clock(period.end_s, form)
    if since_begin and until_end:
        return ""
    if until_end:
        return f", from {begin} UTC on"
    return f", until {end} UTC" if since_begin else f", from {begin} to {end} UTC"


def _who(finding: Finding, card: Card) -> str:
    """Return whom or what the sentence is about; of several that are alike the worst ones."""
    alike = [
        one for one in card.findings
        if one is not finding and one.cause == finding.cause and one.severity != INFO and one.who
    ]  # fmt: skip
    if not alike:
        return finding.who
    if len(alike) == 1:
        return f"{finding.who} and {alike[0].who}"
    what = "others" if finding.cause == STRAGGLER else "more"
    return f"{finding.who} and {len(alike)} {what}"


def who_cost_what(card: Card) -> str:
    """Return the sentence about who made a job slow; empty: no finding says it in these words."""
    verdict, finding = card.verdict, leading_finding(card)
    if verdict.status != DEGRADED or finding is None or not finding.who or not verdict.cost_s:
        return ""
    share = elapsed(verdict.cost_s)
    if verdict.cost_share is not None:
        share = f"{percent(verdict.cost_share)} of its time ({share})"
    who, how = _who(finding, card), f": {finding.how}" if finding.how else ""
    if who != finding.who:  # what is said of one does not hold for all
        how = how.replace(": it ", ": the first ", 1) if how.startswith(": it ") else ""
    return _ended(f"{who} cost this job {share}{_when(finding.period, card.job)}{how}")


def what_happened(card: Card) -> str:
    """Return the sentence as it stands behind a status and a colon."""
    said = [card.verdict.summary, said_cost(card.verdict)]
    return who_cost_what(card) or " ".join(_ended(one) for one in said if one)


def headline(card: Card) -> str:
    """Return what happened to a job, who it was and what it cost, in one sentence if possible."""
    text = what_happened(card)
    return text[:1].upper() + text[1:] if text.split(" ")[0] in _FIRST_WORDS else text
