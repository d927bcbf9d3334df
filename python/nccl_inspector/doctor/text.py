# SPDX-License-Identifier: Apache-2.0
"""The results as text for a terminal, and as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nccl_inspector.doctor.check import Check, Outcome, Result
from nccl_inspector.doctor.examine import Examination, is_root
from nccl_inspector.doctor.facts import CannotTell
from nccl_inspector.model.wording import number
from nccl_inspector.render.text_layout import Item, Paint, join, paragraph

ALL_WELL = "all well"
FORMAT = 1
DOC_DIR = Path("/usr/share/doc/slurm-nccl-inspector")


def find_page(page: str, url: str, directory: Path = DOC_DIR) -> str:
    """Return where a page (`install.md#turn-on`) can be read.

    That is the site's own copy if it has a `url`, else the file if the package with the
    documentation is installed, else the name of that package.
    """
    if url:
        return f"{url.rstrip('/')}/{page.replace('.md', '.html', 1)}"
    name, _, anchor = page.partition("#")
    if (directory / name).is_file():
        return f"{directory / name}" + (f", {anchor.replace('-', ' ')}" if anchor else "")
    return f"{page} in the package slurm-nccl-inspector-doc"


def _setup_command(examination: Examination, check: Check) -> str:
    """Return the call of `setup` that mends what a check has found; empty if none does."""
    setup = examination.facts.setup
    if not check.by_setup or isinstance(setup, CannotTell):
        return ""
    roles = [role for role in examination.roles if role in setup.todo and role in check.roles]
    return f"nccl-inspector setup {roles[0]} --apply" if roles else ""


def _found(examination: Examination, result: Result) -> list[Item]:
    check, command = result.check, _setup_command(examination, result.check)
    fix = f"{command} (as root). By hand: {check.mend}" if command else check.mend
    return [
        paragraph("", f"{check.id}: {result.evidence}", Paint.WARNING),
        paragraph("  means: ", check.meaning, indent=4),
        paragraph("  fix: ", fix, indent=4),
        paragraph("  page: ", find_page(check.page, examination.facts.settings.values.docs_url),
                  indent=4),
    ]  # fmt: skip


def _by_setup(examination: Examination, found: Sequence[Result]) -> list[list[Item]]:
    """Return, for each call of `setup` that fixes several faults, that it does."""
    commands = Counter(_setup_command(examination, one.check) for one in found)
    return [
        [paragraph("", f"{command} fixes {count} of these {len(found)} faults; without --apply it "
                   "shows what it would do")]
        for command, count in commands.items()
        if command and count > 1
    ]  # fmt: skip


def _unknown(results: Sequence[Result]) -> list[list[Item]]:
    """Return a paragraph for each reason, with the checks that could not be made."""
    by_reason: dict[str, list[str]] = {}
    for one in results:
        by_reason.setdefault(one.evidence, []).append(one.check.id)
    return [
        [paragraph("", f"cannot tell: {reason}"), paragraph("  not checked: ", ", ".join(ids))]
        for reason, ids in by_reason.items()
    ]


def _sum(examination: Examination) -> str:
    results = examination.results
    found = sum(one.outcome is Outcome.FOUND for one in results)
    unknown = sum(one.outcome is Outcome.CANNOT_TELL for one in results)
    who = "" if is_root() else "; root can check more"
    return (
        f"{number(found, 'fault')} found, {unknown} of {number(len(results), 'check')} could not "
        f"be made{who if unknown else ''}"
    )


def render(examination: Examination, columns: int) -> str:
    """Return the faults and what could not be told, or the one line that all is well."""
    found = [one for one in examination.results if one.outcome is Outcome.FOUND]
    unknown = [one for one in examination.results if one.outcome is Outcome.CANNOT_TELL]
    if not found and not unknown:
        return f"{ALL_WELL}\n"
    blocks = [_found(examination, one) for one in found]
    blocks += [*_by_setup(examination, found), *_unknown(unknown)]
    blocks.append([*_seen_words(examination), paragraph("", _sum(examination))])
    return join(blocks, columns, colour=False)


def render_list(checks: Sequence[Check], columns: int) -> str:
    """Return all checks: what each looks at, what it means and what to do."""
    blocks: list[list[Item]] = [
        [
            paragraph("", f"{one.id} ({', '.join(sorted(one.roles))})", Paint.TITLE),
            paragraph("  looks at: ", one.looks_at, indent=4),
            paragraph("  means: ", one.meaning, indent=4),
            paragraph("  fix: ", one.mend, indent=4),
        ]
        for one in checks
    ]
    return join(blocks, columns, colour=False)


def _seen(examination: Examination) -> dict[str, Any] | None:
    """Return which libraries the processes of a job have loaded; None: no job was looked at."""
    job = examination.facts.job
    if isinstance(job, CannotTell):
        return None
    boxes = () if isinstance(job.boxes, CannotTell) else job.boxes
    return {
        "job_id": job.job_id,
        "processes": [
            {"pid": one.pid, "nccl": one.nccl, "rccl": one.rccl, "profiler": one.profiler}
            for one in job.processes
        ],
        "boxes": [{"process": one.name, "nccl": one.nccl} for one in boxes],
    }


def _seen_words(examination: Examination) -> list[Item]:
    seen = _seen(examination)
    if seen is None:
        return []
    loaded = {
        f"{library} and {'our' if one['profiler'] else 'no'} plugin"
        for one in seen["processes"]
        if (library := one["nccl"] or one["rccl"])
    }
    measured = {one["nccl"] for one in seen["boxes"]}
    words = [number(len(seen["processes"]), "process"), *sorted(loaded)]
    if measured:
        words.append(f"{len(seen['boxes'])} measured with {' and '.join(sorted(measured))}")
    return [paragraph("seen: ", "; ".join(words), indent=2)]


def as_json(examination: Examination) -> dict[str, Any]:
    """Return the results for programs."""
    return {
        "format": FORMAT,
        "roles": list(examination.roles),
        "well": examination.exit_code == 0,
        "job": _seen(examination),
        "checks": [
            {
                "id": one.check.id,
                "outcome": str(one.outcome),
                "evidence": one.evidence,
                "looks_at": one.check.looks_at,
                "meaning": one.check.meaning,
                "mend": one.check.mend,
                "page": find_page(one.check.page, examination.facts.settings.values.docs_url),
                "setup": _setup_command(examination, one.check),
            }
            for one in examination.results
        ],
    }


def json_text(examination: Examination) -> str:
    """Return `as_json` as one line."""
    return json.dumps(as_json(examination)) + "\n"
