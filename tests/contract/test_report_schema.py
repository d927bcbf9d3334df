# SPDX-License-Identifier: Apache-2.0
"""A card as JSON: valid by the published schema, and read back the same or refused."""

import json
import re
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest

from nccl_inspector.analysis.slow_times.line_columns import common_window_s
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.card import SCHEMA_VERSION, Card, Severity
from nccl_inspector.render import json as schema
from nccl_inspector.render.comment import make_comment
from nccl_inspector.render.html import render_html
from nccl_inspector.render.json import card_from_json, make_schema, schema_text, to_json
from nccl_inspector.render.text import render_text
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.summary.columns import START_S_MAX
from tests.sandbox.layout import REPO
from tests.support import example_cards
from tests.support.example_cards import CARDS

NOW = datetime(2026, 8, 2, 17, tzinfo=UTC)
SMALL = [name for name in CARDS if name != "huge"]
PUBLISHED = REPO / "packaging" / "doc" / "report.schema.json"


def written(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(CARDS[name](), NOW))
    return found


def test_the_published_schema_is_that_of_the_model() -> None:
    assert PUBLISHED.read_text("ascii") == schema_text(), (
        "python -m nccl_inspector.render.json >packaging/doc/report.schema.json"
    )


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(make_schema())


@pytest.mark.parametrize("name", SMALL)
def test_every_card_is_valid(name: str) -> None:
    found = written(name)
    found["heat"] = found["heat"][:2]
    found["timeline"]["series"] = found["timeline"]["series"][:1]
    jsonschema.Draft202012Validator(make_schema()).validate(found)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict", "status"), "FINE"),
        (("job", "job_id"), "48213"),
        (("job", "start"), "yesterday"),
        (("timeline", "series", 0, "bus_gbs", 0), "fast"),
        (("schema_version",), "2.0.0"),
        (("heat", 0), ["rank 0"]),
    ],
)
def test_the_schema_finds_what_is_wrong(path: tuple[Any, ...], value: Any) -> None:
    found = written("straggler") | {"timeline": written("hostile")["timeline"]}
    at: Any = found
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(make_schema()).validate(found)


@pytest.mark.parametrize("name", SMALL)
def test_a_card_is_read_back_the_same(name: str) -> None:
    card = CARDS[name]()
    assert card_from_json(to_json(card, NOW)) == card


def test_the_longest_window_that_lines_can_have_in_common_is_read_back() -> None:
    """A multiple of all lengths that boxes claim, doubled while there are too many windows."""
    longest = 2 * common_window_s([START_S_MAX - 1, START_S_MAX])
    card = CARDS["hostile"]()
    card = replace(card, timeline=replace(card.timeline, window_s=longest))
    assert card_from_json(to_json(card, NOW)) == card


def test_the_head_says_versions_when_and_the_exit_code() -> None:
    found = written("hang")
    assert found["schema_version"] == SCHEMA_VERSION
    assert found["generated_at"] == "2026-08-02T17:00:00Z"
    assert found["exit_code"] == 2
    assert re.fullmatch(r"[0-9.]+\w*", found["tool_version"])


def test_a_time_has_its_iso_form_beside_it() -> None:
    found = written("hang")
    assert found["job"]["start_s"] == example_cards.START_S
    assert found["job"]["start"] == "2026-08-02T14:00:00Z"
    assert found["hangs"][0]["since"] == "2026-08-02T15:12:44Z"
    assert written("nothing")["job"]["end"] is None


def test_every_unix_time_of_the_model_is_one_of_the_names_with_an_iso_form() -> None:
    kinds = [one for one in schema._kinds(Card) if is_dataclass(one)]
    names = {field.name for kind in kinds for field in fields(kind)}
    durations = {"busy_s", "cost_s", "age_s", "window_s"}
    durations |= {"gpu_s", "credit_s", "wire_s", "flush_s", "taken_s"}
    durations |= {"call_s", "call_max_s", "launch_s", "launch_max_s", "usual_call_s"}
    assert {name for name in names if name.endswith("_s")} - durations == set(schema._TIMES)


@pytest.mark.parametrize("name", SMALL)
def test_the_text_is_one_line_of_ascii(name: str) -> None:
    text = to_json(CARDS[name](), NOW)
    assert re.fullmatch(r"[ -~]+\n", text)


def test_a_figure_that_is_no_number_is_not_written() -> None:
    card = example_cards.no_data()
    odd = Card(card.job, card.verdict, card.environment, card.data_quality, heat=(("r", (1e999,)),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(odd, NOW)


def changed(path: tuple[Any, ...], value: Any) -> str:
    found = written("straggler")
    at: Any = found
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not_json"),
        ("{", "not_json"),
        ("[" * 100_000, "not_json"),
        ('{"schema_version": NaN}', "not_json"),
        ('{"schema_version": ' + "1" * 5000 + "}", "not_json"),
        ("[]", "version"),
        ("{}", "version"),
        (changed(("schema_version",), "2.0.0"), "version"),
        (changed(("schema_version",), 1), "version"),
        (changed(("job",), None), "bad_card"),
        (changed(("job", "job_id"), True), "bad_card"),
        (changed(("job", "job_id"), 1.5), "bad_card"),
        (changed(("job", "job_id"), 10**30), "bad_card"),
        (changed(("job", "start_s"), 10**400), "bad_card"),
        (changed(("job", "name"), 5), "bad_card"),
        (changed(("job", "attempts"), "01"), "bad_card"),
        (changed(("job", "num_nodes"), -1), "bad_card"),
        (changed(("operations", 0, "size_class"), 64), "bad_card"),
        (changed(("operations", 0, "size_class"), -1), "bad_card"),
        (changed(("communicators", 0, "nranks"), 2**31), "bad_card"),
        (changed(("timeline", "windows"), 2**40), "bad_card"),
        (changed(("timeline", "window_s"), -10), "bad_card"),
        (changed(("job", "attempts"), {"0": 1}), "bad_card"),
        (changed(("verdict", "status"), "FINE"), "bad_card"),
        (changed(("findings", 0, "severity"), "\x1b[31m"), "bad_card"),
        (changed(("heat", 0), ["rank 0", [1.0], 2]), "bad_card"),
        (changed(("data_quality", "dropped"), {"x" * 500: "1"}), "bad_card"),
        (changed(("stragglers", 0, "flagged"), 1), "bad_card"),
        (changed(("verdict", "cost_s"), 1).replace('"cost_s": 1', '"cost_s": 1e999'), "bad_card"),
    ],
)
def test_what_is_no_card_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError) as refused:
        card_from_json(text)
    assert refused.value.reason == reason
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


def test_a_card_that_lacks_a_key_without_a_default_is_refused() -> None:
    found = written("straggler")
    del found["verdict"]["summary"]
    with pytest.raises(RefusedError, match=r"card\.verdict\.summary: not there"):
        card_from_json(json.dumps(found))


def test_a_card_of_an_earlier_or_later_minor_version_is_read() -> None:
    found = written("straggler")
    del found["baseline"]
    del found["job"]["components"]
    found["job"]["colour"] = "red"
    found["schema_version"] = "1.9.0"
    assert card_from_json(json.dumps(found)) == example_cards.straggler()


@pytest.mark.parametrize("rule", ["of-a-later-release", example_cards.NASTY, ""])
def test_a_card_with_a_finding_that_this_release_does_not_know_is_read_and_shown(rule: str) -> None:
    found = written("straggler")
    found["findings"][0]["rule"] = rule
    card = card_from_json(json.dumps(found))
    assert card.findings[0].rule == rule
    explained = " what this means: nccl-inspector explain straggler\n"
    assert render_text(card) == render_text(example_cards.straggler()).replace(explained, "")
    assert render_html(card, NOW)
    assert make_comment(card) == make_comment(example_cards.straggler())
    assert rows_of(card)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(make_schema()).validate(found)


def test_severities_are_the_letters_that_they_were() -> None:
    found = written("straggler")
    assert {one["severity"] for one in found["findings"]} <= {"I", "W", "C"}
    assert f'"severity": "{found["findings"][0]["severity"]}"' in to_json(
        example_cards.straggler(), NOW
    )
    read = card_from_json(json.dumps(found)).findings[0].severity
    assert isinstance(read, Severity)
    assert str(read) == found["findings"][0]["severity"]


def test_a_file_beyond_the_cap_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BYTES_MAX", 10)
    with pytest.raises(RefusedError, match="too_big"):
        card_from_json('{"schema_version": "1.0.0"}')


@pytest.mark.parametrize("least_or_most", [0, 1])
@pytest.mark.parametrize("name", sorted(schema._RANGES))
def test_a_stored_card_with_any_number_that_is_taken_is_shown_in_every_form(
    name: str, least_or_most: int
) -> None:
    """What is beyond would be no place of a table: it is refused, and no IndexError."""

    def put(value: Any, number: int) -> Any:
        if isinstance(value, dict):
            return {
                key: number if key == name and isinstance(one, int) else put(one, number)
                for key, one in value.items()
            }
        return [put(one, number) for one in value] if isinstance(value, list) else value

    limit = schema._RANGES[name][least_or_most]
    found = written("network")
    card = card_from_json(json.dumps(put(found, limit)))
    assert render_text(card)
    assert render_html(card, NOW)
    assert make_comment(card)
    assert rows_of(card)
    with pytest.raises(RefusedError, match="bad_card"):
        card_from_json(json.dumps(put(found, limit + (2 * least_or_most - 1))))


def test_a_large_count_as_evidence_is_read_back_as_it_was_written() -> None:
    card = CARDS["straggler"]()
    finding = next(one for one in card.findings if one.evidence)
    large = replace(finding.evidence[0], value=(1 << 63) - 1)
    text = to_json(replace(card, findings=(replace(finding, evidence=(large,)),)), NOW)
    assert json.loads(to_json(card_from_json(text), NOW)) == json.loads(text)


def test_a_sum_of_claims_beyond_64_bits_is_written_so_that_it_can_be_read() -> None:
    card = example_cards.healthy()
    quality = replace(card.data_quality, dropped={"pool": 1 << 70})
    found = card_from_json(to_json(replace(card, data_quality=quality), datetime.now(UTC)))
    assert found.data_quality.dropped == {"pool": (1 << 63) - 1}
