# SPDX-License-Identifier: Apache-2.0
"""Make the page of all rules of NCCL's log, packaging/doc/nccl-rules.md, from the catalogue.

`python -m nccl_inspector.render.nccl_rules_page` prints it.
"""

from collections.abc import Iterator

from nccl_inspector.model.rules import SEVERITY_WORDS
from nccl_inspector.nccl_log.catalogue import LogRule, Role, load_catalogue

_HEAD = """\
# Rules of NCCL's log

<!-- Made by `make pages` from python/nccl_inspector/nccl_log/catalogue.tsv: change that. -->

`nccl-inspector logs` prints the id of each rule that fits, and so does the report. An id does not
change between releases. [NCCL's own log](nccl-log.md) says how to get and read one.
"""
_TITLES = {
    Role.ERROR: ("Errors", "Something failed. The first of these is told above all findings."),
    Role.SYMPTOM: ("Symptoms", "A process noticed that something does not go on."),
    Role.CONSEQUENCE: ("Consequences", "These follow another error, and are only counted."),
    Role.SETTING: ("Settings", "How NCCL runs. Nothing failed, but it may be slow."),
}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("_", "\\_").replace("<", "\\<")


def _row(rule: LogRule) -> str:
    title = f"{rule.title[0].upper()}{rule.title[1:]}."
    meaning = _cell(f"{title} {rule.meaning}".strip())
    return f"| `{rule.id}` | {SEVERITY_WORDS[rule.severity]} | {meaning} | {_cell(rule.action)} |"


def _tables() -> Iterator[str]:
    rules = load_catalogue().rules.values()
    for role, (title, about) in _TITLES.items():
        yield f"\n## {title}\n\n{about}\n"
        yield "| rule | severity | what it means | what to do |"
        yield "|---|---|---|---|"
        yield from (_row(one) for one in rules if one.role is role)


def nccl_rules_page() -> str:
    """Return the page."""
    return "\n".join([_HEAD.rstrip("\n"), *_tables()]) + "\n"


if __name__ == "__main__":
    print(nccl_rules_page(), end="")
