# SPDX-License-Identifier: Apache-2.0
"""Make the page of all findings, packaging/doc/findings.md, from model/rules.py.

`python -m nccl_inspector.render.findings_page` prints it.
"""

from collections.abc import Iterator
from textwrap import fill

from nccl_inspector.model.rules import RULES, SEVERITY_WORDS, About, Rule, severity_words

_WIDTH = 100
_HEAD = """\
# Findings

<!-- Made by `make pages` from python/nccl_inspector/model/rules.py: change that. -->

Every finding of a report has one of these ids, in `--json` as the key `rule`. An id does not change
between releases. `nccl-inspector explain ID` prints what this page says about it. [How the report
judges](report.md#how-the-verdict-is-reached) says when there is such a finding, and how severe it
is.
"""


def _paragraph(text: str) -> str:
    return fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _table() -> Iterator[str]:
    yield "| finding | severity | what it says |"
    yield "|---|---|---|"
    for one in RULES:
        severity = SEVERITY_WORDS[one.severity] + (" \\*" if one.otherwise else "")
        yield f"| [`{one.id}`](#{one.id}) | {severity} | {one.summary} |"
    yield ""
    yield "\\* It depends on the case: see the section of the finding."


def _section(rule: Rule) -> Iterator[str]:
    yield f"### {rule.id}"
    yield ""
    yield _paragraph(f"**{rule.summary}** {rule.meaning}")
    yield ""
    yield _paragraph(f"Severity: {severity_words(rule)}.")
    if rule.action:
        yield ""
        yield _paragraph(f"What to do: {rule.action}.")


def findings_page() -> str:
    """Return the page."""
    lines = [_HEAD, *_table()]
    for about in About:
        lines += ["", f"## {about}"]
        for rule in RULES:
            if rule.about is about:
                lines += ["", *_section(rule)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(findings_page(), end="")
