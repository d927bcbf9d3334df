"""Every message that the page of symptoms quotes is one that the code has."""

import re

import pytest

from tests.support.repository import REPO

PAGE = REPO / "packaging" / "doc" / "troubleshoot.md"
SOURCES = ("spank/*.c", "plugin/**/*.c", "prolog/*", "epilog/*", "python/nccl_inspector/**/*.py")
# Two literals that the compiler joins; the second may be a format string of Python's.
_JOINED = re.compile(r'"\s+f?"')


def quoted_messages() -> list[str]:
    """Return what stands in the first column of the tables whose head says `message`."""
    found, inside = [], False
    for line in PAGE.read_text("utf-8").splitlines():
        inside = line.startswith("|") and (inside or line.startswith("| message |"))
        if inside and (match := re.match(r"\| `([^`]+)` \|", line)):
            found.append(match[1])
    return found


def sources() -> list[str]:
    return [
        _JOINED.sub("", path.read_text("utf-8"))
        for pattern in SOURCES
        for path in sorted(REPO.glob(pattern))
    ]


TEXTS = sources()


@pytest.mark.parametrize("message", quoted_messages())
def test_a_quoted_message_is_in_one_source(message: str) -> None:
    fixed = [part for part in message.split("...") if part.strip()]
    assert len(max(fixed, key=len).strip()) >= 5, "too little of it is fixed to be found"
    assert any(all(part in text for part in fixed) for text in TEXTS)


def test_the_page_quotes_messages_of_every_part() -> None:
    messages = quoted_messages()
    assert len(messages) > 50
    assert len(TEXTS) > 300
