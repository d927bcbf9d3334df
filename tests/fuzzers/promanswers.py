"""Answers of a Prometheus: to the report of a job that has ended, and to `top`."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from nccl_inspector.errors import InspectorError
from nccl_inspector.exposition.process_file import parse_file
from nccl_inspector.exposition.text import unescape
from nccl_inspector.live.table import render
from nccl_inspector.prometheus.api import Api
from nccl_inspector.prometheus.node_view import PrometheusView
from nccl_inspector.prometheus.source import prometheus_card
from tests.fuzzers import mutation, seeds
from tests.fuzzers.forms import check_card, check_text
from tests.fuzzers.page import _LABEL, IDENTITY
from tests.fuzzers.target import Read, Run, Target
from tests.simulator.play import JOB_ID

URL = "http://prometheus:9090"
_MINUTES, _SERIES = 8, 30
_OWN = {
    "nccl_inspector_job_info": {"user": "amy", "account": "a", "partition": "gpu"},
    "nccl_inspector_job_processes": {"state": "running"},
    "nccl_inspector_job_throughput": {"unit": "TFLOP/s/GPU"},
}


def _labels() -> list[dict[str, str]]:
    """Return the labels of a job's series as the agent publishes them."""
    found = parse_file(seeds.played("hung").pages()[0], IDENTITY, {})
    rows = [
        {"__name__": one.metric.name, **{k: unescape(v) for k, v in _LABEL.findall(one.text)}}
        for one in found.values()
    ]
    return [{**IDENTITY, "__name__": name, **more} for name, more in _OWN.items()] + rows[:_SERIES]


@cache
def _seeds() -> list[bytes]:
    """Return a vector and a matrix, which are the answers to all questions."""
    end_s = seeds.START_S + 60 * _MINUTES
    vector = [
        {"metric": labels, "value": [end_s, f"{at + 0.5}"]} for at, labels in enumerate(_labels())
    ]
    matrix = [
        {
            "metric": labels,
            "values": [[end_s - 60 * back, "0.001"] for back in range(_MINUTES, -1, -1)],
        }
        for labels in _labels()
    ]
    answers = {
        "vector": {"status": "success", "data": {"resultType": "vector", "result": vector}},
        "matrix": {"status": "success", "data": {"resultType": "matrix", "result": matrix}},
    }
    return [json.dumps(answers).encode()]


def _part(data: bytes, name: str) -> bytes:
    """Return one of the answers; of what is no JSON all of it."""
    try:
        answers = json.loads(data)
        return mutation.dumped(answers[name])
    except (ValueError, TypeError, KeyError, RecursionError):
        return data


def _told() -> Iterator[str]:
    """Yield what the report and `top` come to."""
    try:
        end_s = seeds.START_S + 60 * _MINUTES
        yield check_card(prometheus_card(URL, JOB_ID, seeds.START_S, end_s))
    except InspectorError as err:
        yield str(err)
    for wanted in (None, JOB_ID):
        try:
            view = PrometheusView(URL, wanted, "2m").look()
        except InspectorError as err:
            yield str(err)
            continue
        for line in render(view, wanted is not None, 100):
            check_text("top", line.text)
        yield f"{len(view.jobs)} jobs"


def prepare(_place: Path) -> Run:
    """Return what asks a Prometheus that answers with the input."""

    def run(data: bytes) -> Read:
        answers = {"query": _part(data, "vector"), "query_range": _part(data, "matrix")}

        def answer(_api: Api, what: str, _fields: Mapping[str, Any]) -> bytes:
            return answers[what]

        def rest() -> str:
            with patch.object(Api, "_ask", answer):
                return " ".join(_told())

        words: list[str] = []
        refused: Counter[str] = Counter()
        api = Api(URL)
        with patch.object(Api, "_ask", answer):
            for ask in (
                lambda: api.query("up"), lambda: api.query_range("up", 0, 60, 30, refused)
            ):  # fmt: skip
                try:
                    words.append(f"{bool(ask())}")
                except InspectorError as err:
                    words.append(str(err))
        return Read(" ".join((*words, *sorted(refused))), rest)

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return other answers."""
    if chance.random() < 0.1:
        return mutation.several(chance, data, corpus, mutation.TEXT)
    return mutation.change_json(chance, data, corpus)


TARGET = Target("prometheus", _seeds, mutate, prepare, rest_of=24)
