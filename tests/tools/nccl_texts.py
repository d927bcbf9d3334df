# SPDX-License-Identifier: Apache-2.0
"""Which warnings of NCCL no rule fits: python -m tests.tools.nccl_texts REPOSITORY [TAG...].

REPOSITORY is a clone of NVIDIA/nccl with its tags. The texts of all WARN lines are read from the
sources of these releases; each that no rule of nccl_log/catalogue.tsv fits is printed with its file
and its first and last release. Most are checks of NCCL's own state. The others need a rule, or
another form of one. Nothing of NCCL is kept here.
"""

import argparse
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.nccl_log.catalogue import Matcher, parse_version
from nccl_inspector.nccl_log.record import Level

TAGS = (
    "v2.23.4-1", "v2.24.3-1", "v2.25.1-1", "v2.26.5-1", "v2.27.7-1", "v2.28.9-1", "v2.29.7-1",
    "v2.30.7-1",
)  # fmt: skip
_SOURCES = (".cc", ".cpp", ".c", ".cu", ".h")
_STRINGS = r'(?:"(?:[^"\\]|\\.)*"\s*(?:PRI\w+\s*)?)+'
_WARN = re.compile(rf"\bWARN\s*\(((?:[^\"()]|\([^()]*\))*?)({_STRINGS})")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_CONVERSION = re.compile(r"%[-+ #0-9.*hlzjt]*[a-zA-Z%]")


@dataclass(frozen=True)
class Text:
    """A format string, where it is, and the releases that have it, the first one first."""

    file: str
    words: str
    versions: list[str]

    def line(self) -> bytes:
        """Return a message that this format can make."""
        return _CONVERSION.sub(_value, self.words).encode()


def _value(match: re.Match[str]) -> str:
    kind = match[0][-1]
    return {"%": "%", "s": "text", "x": "5f", "X": "5f", "p": "0x5f", "f": "1.5"}.get(kind, "3")


def _git(repository: Path, *words: str) -> str:
    argv = ["git", "-C", str(repository), *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, errors="replace").stdout


def read_texts(repository: Path, tags: list[str]) -> list[Text]:
    """Return the texts of the warnings in these releases."""
    found: dict[str, Text] = {}
    for tag in tags:
        names = _git(repository, "ls-tree", "-r", "--name-only", tag, "src").split()
        for name in (one for one in names if one.endswith(_SOURCES)):
            for words in _texts_in(_git(repository, "show", f"{tag}:{name}")):
                text = found.setdefault(words, Text(name.removeprefix("src/"), words, []))
                text.versions.append(tag.removeprefix("v").partition("-")[0])
    return [*found.values()]


def _texts_in(source: str) -> Iterator[str]:
    for match in _WARN.finditer(source):
        yield "".join(_STRING.findall(match[2])).replace("\\n", " ").replace('\\"', '"')


def is_told(matcher: Matcher, text: Text) -> bool:
    """Tell whether a rule fits the text in its first and in its last release."""
    return all(
        (rule := matcher.find(Level.WARN, text.line(), parse_version(version))) is not None
        and rule.id != "warning"
        for version in (text.versions[0], text.versions[-1])
    )


def main() -> None:
    """Print the texts without a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("tags", nargs="*", default=TAGS)
    words = parser.parse_args()
    matcher = Matcher()
    texts = read_texts(words.repository, words.tags)
    untold = [one for one in texts if not is_told(matcher, one)]
    for one in sorted(untold, key=lambda text: (text.file, text.words)):
        print(f"{one.versions[0]}-{one.versions[-1]}\t{one.file}\t{one.words}")
    print(f"{len(texts)} texts, {len(texts) - len(untold)} with a rule")


if __name__ == "__main__":
    main()
