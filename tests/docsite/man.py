"""A man page for each command, made of what click says of it.

click-man was tried: it asks for the attribute `commands`, which a group that imports its commands
when they are asked for has not, and it cuts the summaries.
"""

from pathlib import Path

import click

from nccl_inspector import __version__
from tests.docsite.commands import NAME, UNCUT, commands, options, paragraphs, usage


def _roff(text: str) -> str:
    """Return text that troff takes as text, whatever is in it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))


def man_page(context: click.Context) -> str:
    """Return the man page of a command, for section 1."""
    command, name = context.command, context.command_path.replace(" ", "-")
    summary = command.get_short_help_str(UNCUT)
    lines = [
        f'.TH "{name.upper()}" "1" "" "{NAME} {__version__}"',
        ".SH NAME", f"{_roff(name)} \\- {_roff(summary)}",
        ".SH SYNOPSIS", f".B {_roff(usage(context))}",
        ".SH DESCRIPTION",
    ]  # fmt: skip
    for text in paragraphs(command):
        lines += [".PP", _roff(text)]
    lines.append(".SH OPTIONS")
    for option, text in options(context):
        lines += [".TP", f"\\fB{_roff(option)}\\fP", _roff(text)]
    below = [
        one for one in commands()
        if one.command_path.split()[:-1] == context.command_path.split()
    ]  # fmt: skip
    if below:
        lines.append(".SH COMMANDS")
    for one in below:
        page = _roff(one.command_path.replace(" ", "-"))
        lines += [".TP", f"\\fB{page}\\fP(1)", _roff(one.command.get_short_help_str(UNCUT))]
    return "\n".join(lines) + "\n"


def write_man_pages(folder: Path) -> list[Path]:
    """Write a page for each command; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for context in commands():
        written.append(folder / f"{context.command_path.replace(' ', '-')}.1")
        written[-1].write_text(man_page(context), encoding="utf-8")
    return written
