"""Stored reports: a card that was JSON, in every form again, and beside another."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.hostlist import NODES_MAX
from nccl_inspector.render.json import card_from_json, to_json
from tests.fuzzers import mutation
from tests.fuzzers.forms import NOW, check_card
from tests.fuzzers.target import Read, Run, Target
from tests.support import example_cards

_SEED_BYTES_MAX = 150_000  # larger ones only take longer


def _largest_job(data: bytes) -> bytes:
    """Return a card's JSON with as many nodes as a job may have: their names take a second."""
    found = json.loads(data)
    found["job"]["nodelist"] = f"n[1-{NODES_MAX}]"
    return json.dumps(found).encode()


@cache
def _seeds() -> list[bytes]:
    made = (to_json(make(), NOW).encode() for make in example_cards.CARDS.values())
    found = [data for data in made if len(data) < _SEED_BYTES_MAX]
    small = sorted(found, key=len)[:-1]  # the largest takes five times their time
    return [*(4 * small), *found, _largest_job(small[0])]


def prepare(_place: Path) -> Run:
    """Return what reads a stored report and shows it."""
    other = card_from_json(_seeds()[0])

    def run(data: bytes) -> str | Read:
        try:
            card = card_from_json(data)
        except RefusedError as err:
            return str(err)
        return Read(
            f"{card.verdict.status} {card.verdict.cause}", lambda: check_card(card, [other])
        )

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return JSON with other values."""
    if chance.random() < 0.05:
        return mutation.several(chance, data, corpus, mutation.TEXT)
    return mutation.change_json(chance, data, corpus)


TARGET = Target("stored", _seeds, mutate, prepare, rest_of=4)
