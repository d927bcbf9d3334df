"""Man pages: of each command (sections 1 and 8), and of nccl-inspector.conf (section 5).

    python -m tests.docsite.man DIRECTORY     # DIRECTORY/man1, man5 and man8

click-man was tried: it asks for the attribute `commands`, which a group that imports its commands
when they are asked for does not have, and it cuts the summaries.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from nccl_inspector import __version__
from nccl_inspector.cli import GROUPS
from nccl_inspector.settings.config import load_settings
from tests.docsite.commands import NAME, UNCUT, commands, options, paragraphs, usage

CONF = "nccl-inspector.conf"
_FOR_USERS = "For users"  # the group of commands in section 1; all others are in section 8


def _roff(text: str) -> str:
    """Return text that troff takes as text, whatever is in it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))


def _title(name: str, section: int) -> str:
    return f'.TH "{name.upper()}" "{section}" "" "{NAME} {__version__}"'


def section_of(context: click.Context) -> int:
    """Return the section of a command: 1 for users, 8 for administrators and services."""
    words = context.command_path.split()
    return 1 if len(words) == 1 or words[1] in GROUPS[_FOR_USERS] else 8


def man_page(context: click.Context) -> str:
    """Return the man page of a command."""
    command, name = context.command, context.command_path.replace(" ", "-")
    summary = command.get_short_help_str(UNCUT)
    lines = [
        _title(name, section_of(context)),
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
        summary = _roff(one.command.get_short_help_str(UNCUT))
        lines += [".TP", f"\\fB{page}\\fP({section_of(one)})", summary]
    lines += [".SH SEE ALSO", f"\\fB{_roff(CONF)}\\fP(5)"]
    return "\n".join(lines) + "\n"


def conf_page() -> str:
    """Return the man page of the configuration file."""
    lines = [
        _title(CONF, 5),
        ".SH NAME", f"{_roff(CONF)} \\- settings of {_roff(NAME)}",
        ".SH SYNOPSIS", f".B /etc/nccl\\-inspector/{_roff(CONF)}",
        ".SH DESCRIPTION",
        "One setting a line, as \\fBkey = value\\fP; what follows a # is a comment.",
        "A line that is not valid turns measuring off, and the log says so.",
        ".PP",
        "Sizes take K, M, G or T. Durations take ms, s, m or h.",
        ".SH SETTINGS",
    ]  # fmt: skip
    for one in load_settings().values():
        default = f" [default: {_roff(one.default)}]" if one.default else ""
        job = " A job may set it, too: \\-\\-nccl\\-inspector=MODE,KEY=VALUE."
        lines += [
            ".TP", f"\\fB{_roff(one.name)}\\fP{default}",
            _roff(one.help) + (job if one.scope == "option" else ""),
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _pages() -> Iterator[tuple[str, int, str]]:
    for context in commands():
        yield context.command_path.replace(" ", "-"), section_of(context), man_page(context)
    yield CONF, 5, conf_page()


def write_man_pages(folder: Path) -> list[Path]:
    """Write all pages, below `folder` by section; return the files."""
    written = []
    for name, section, text in _pages():
        below = folder / f"man{section}"
        below.mkdir(parents=True, exist_ok=True)
        written.append(below / f"{name}.{section}")
        written[-1].write_text(text, encoding="utf-8")
    return written


if __name__ == "__main__":
    write_man_pages(Path(sys.argv[1]))
