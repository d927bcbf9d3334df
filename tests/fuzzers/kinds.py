"""A target of several kinds of input: the first line of an input is the name of its kind."""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from nccl_inspector.errors import InspectorError
from tests.fuzzers import mutation
from tests.fuzzers.target import Run


def reading(readers: Mapping[str, Callable[[bytes], str]]) -> Run:
    """Return what reads an input with the reader of its kind."""

    def run(data: bytes) -> str:
        name, _, rest = data.partition(b"\n")
        try:
            return f"{name!a} {readers[name.decode()](rest)}"
        except InspectorError as err:
            return f"{name!a} {err!s:.24}"

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return another input of the same kind."""
    name, _, rest = data.partition(b"\n")
    others = [one.partition(b"\n")[2] for one in corpus[:64]]
    if rest.startswith(b"{") and chance.random() < 0.8:
        return name + b"\n" + mutation.change_json(chance, rest, others)
    return name + b"\n" + mutation.several(chance, rest, others, mutation.TEXT)
