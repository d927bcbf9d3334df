"""The page of all commands, made of what click says of them."""

import re
import textwrap
from collections.abc import Iterator
from inspect import cleandoc

import click

from nccl_inspector.cli import GROUPS, cli

NAME = "nccl-inspector"
PAGE = "cli.md"
# Longer than any summary: click cuts at this length.
UNCUT = 1000
_COLUMNS = 100

_HEAD = """# Commands and exit statuses

Made by `make docs DOCS_ARGS=--write` from what `--help` prints. The same text is in the man pages,
which `make docs` writes into `build/man` and `make install-python` installs.

## Exit statuses

The exit statuses of every command are:

- 0: success.
- 1: an error, which one line on standard error explains.
- 2: a wrong option or argument.

These commands differ:

| command | exit status |
|---|---|
{statuses}

## Completion in the shell

Completion is click's own. For bash, put this line into `~/.bashrc`:

    eval "$(_NCCL_INSPECTOR_COMPLETE=bash_source nccl-inspector)"

For zsh, put it into `~/.zshrc` with `zsh_source` instead of `bash_source`. For fish:

    cd ~/.config/fish/completions
    _NCCL_INSPECTOR_COMPLETE=fish_source nccl-inspector >nccl-inspector.fish

The line for bash or zsh starts the command once in each new shell. To avoid that, write what it
prints to a file, and source the file.
"""


def walk(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command and of those below it, in the order of the help."""
    yield context
    if isinstance(command, click.Group):
        names = command.list_commands(context)
        if command is cli:
            names = [name for group in GROUPS.values() for name in group]
        for name in names:
            below = command.get_command(context, name)
            if below is not None:
                yield from walk(below, click.Context(below, context, name))


def commands() -> list[click.Context]:
    """Return the context of the command and of each command below it."""
    return list(walk(cli, click.Context(cli, info_name=NAME)))


def paragraphs(command: click.Command) -> list[str]:
    """Return the paragraphs of the help, each in one line."""
    return [" ".join(part.split()) for part in cleandoc(command.help or "").split("\n\n")]


def usage(context: click.Context) -> str:
    """Return `nccl-inspector report [OPTIONS] JOB_ID`."""
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def options(context: click.Context) -> list[tuple[str, str]]:
    """Return each option and what it is for."""
    found = (
        one.get_help_record(context)
        for one in context.command.get_params(context)
        if isinstance(one, click.Option)
    )
    return [(words, " ".join(text.split())) for words, text in filter(None, found)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _statuses() -> list[str]:
    rows = []
    for context in commands():
        for sentence in re.split(r"(?<=\.) (?=[A-Z])", " ".join(paragraphs(context.command))):
            if "exit status" in sentence.lower():
                name = context.command_path.removeprefix(f"{NAME} ")
                rows.append(f"| `{name}` | {_cell(sentence)} |")
    return rows


def commands_page() -> str:
    """Return the page of all commands."""
    titles = {name: title for title, group in GROUPS.items() for name in group}
    parts, last = [_HEAD.format(statuses="\n".join(_statuses()))], ""
    for context in commands()[1:]:
        words = context.command_path.split()
        title = titles[words[1]]
        if title != last:
            parts.append(f"## {title}\n")
            last = title
        parts.append(f"### {' '.join(words[1:])}\n\n    {usage(context)}\n")
        parts += [f"{textwrap.fill(text, _COLUMNS)}\n" for text in paragraphs(context.command)]
        rows = [
            f"| `{_cell(option)}` | {_cell(text)} |"
            for option, text in options(context)
            if "--help" not in option
        ]
        if rows:
            parts.append("\n".join(["| option | |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)
