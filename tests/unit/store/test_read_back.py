# SPDX-License-Identifier: Apache-2.0
"""The index is moved to another engine and back, and nothing is lost."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nccl_inspector.controller.remake_index import FILE, move, rebuild
from nccl_inspector.render.json import to_json
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.store.card_rows import CardRows
from nccl_inspector.store.index import reading
from nccl_inspector.store.place import IndexPlace, index_of, user_index
from nccl_inspector.store.queries import JobFilter
from nccl_inspector.store.read_back import all_rows
from tests.support import example_cards
from tests.support.postgres import Postgres
from tests.support.stored_cards import UID, card, ids, keep, store_in


def all_in(config: Config) -> list[CardRows]:
    """Each job's rows, those of one kind in any order."""
    with reading(index_of(config)) as (index, _):
        return [
            replace(
                one,
                nodes=tuple(sorted(one.nodes, key=str)),
                entities=tuple(sorted(one.entities, key=str)),
                kinds=tuple(sorted(one.kinds, key=str)),
            )
            for one in all_rows(index)
        ]


@pytest.mark.long
def test_an_index_is_moved_to_a_database_and_back(postgres: Postgres, open_path: Path) -> None:
    place = store_in(open_path)
    config = replace(parse_config("", "none"), store_dir=place.store_dir, cluster="c1")
    cards = [one() for one in (example_cards.network, example_cards.hang)]
    cards = [
        replace(one, job=replace(one.job, job_id=at, cluster="c1"))
        for at, one in enumerate(cards, 10)
    ]
    keep(place, card(1, named="n1 GPU2"), *cards, *(card(at) for at in range(100, 1300)))
    before = all_in(config)
    url = postgres.url(postgres.new_database())
    said: list[int] = []
    assert move(config, url, said.append) == len(before) == 1203
    assert said == [1000]
    moved = replace(config, store_url=url)
    assert all_in(moved) == before
    assert move(config, url) == 1203, "once more changes nothing"
    assert all_in(moved) == before
    place.file.unlink()
    assert move(moved, FILE) == 1203
    assert all_in(config) == before
    assert user_index(place.store_dir, UID).exists()


def test_a_move_gives_the_jobs_the_clusters_name_and_leaves_those_of_others(
    postgres: Postgres, open_path: Path
) -> None:
    place = store_in(open_path)
    keep(place, card(1), card(2))
    config = replace(parse_config("", "none"), store_dir=place.store_dir, cluster="west")
    url = postgres.url(postgres.new_database())
    keep(IndexPlace(place.store_dir, url, "east"), card(1, cluster="east"))
    move(config, url)
    jobs = [one.job for one in all_in(replace(config, store_url=url))]
    assert {(job.cluster, job.job_id) for job in jobs} == {("east", 1), ("west", 1), ("west", 2)}


def test_an_index_in_a_database_is_made_anew_of_the_stored_reports(
    postgres: Postgres, open_path: Path
) -> None:
    place = store_in(open_path, postgres.url(postgres.new_database()))
    config = replace(
        parse_config("", "none"), store_dir=place.store_dir, store_url=place.url, cluster="c1"
    )
    keep(place, card(7), card(8, cluster="other"))
    for number in (1, 2):
        (place.store_dir / str(number)).mkdir()
        text = to_json(card(number), datetime.now(UTC))
        (place.store_dir / str(number) / "0.json").write_text(text)
    assert rebuild(config) == (2, 0)
    assert sorted(ids(place, JobFilter())) == [1, 2, 8]


def test_a_move_that_fails_leaves_the_target_as_it_was(
    postgres: Postgres, open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = store_in(open_path, postgres.url(postgres.new_database()))
    config = replace(
        parse_config("", "none"), store_dir=place.store_dir, store_url=place.url, cluster="c1"
    )
    keep(place, card(1))
    keep(IndexPlace(place.store_dir), card(5))

    def broken(*_: object) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr("nccl_inspector.controller.remake_index.put", broken)
    with pytest.raises(OSError, match="Input/output"):
        move(config, FILE)
    assert ids(IndexPlace(place.store_dir), JobFilter()) == [5]
