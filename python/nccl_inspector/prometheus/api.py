# SPDX-License-Identifier: Apache-2.0
"""Queries to a Prometheus, bounded in time and size."""

import http.client
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from nccl_inspector import __version__
from nccl_inspector.errors import InspectorError

SOCKET_S = 10.0  # the longest wait for the server to send anything
ANSWER_S = 30.0  # the longest time for a whole answer
_ANSWER_BYTES_MAX = 64 << 20
_CHUNK_BYTES = 1 << 16
_VALUE_MAX = 1e100  # nothing that is asked for is as large; sums and means stay finite
# Errors that parsing a malformed answer can raise, however deeply its JSON is nested.
_NOT_AN_ANSWER = (
    ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PromSample:
    """One series of an answer; its value is finite."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class PromTrack:
    """One series of a range query: points (Unix time, finite value), in the order of time."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


def check_url(url: str) -> str:
    """Return the URL of a Prometheus without a slash at its end.

    Raises:
        InspectorError: it is not such a URL, or has a user, query or fragment; a password in it
            would be visible to everybody in `ps`.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        parts.port  # noqa: B018 - it raises
    except ValueError as err:
        raise InspectorError(f"{url}: {err}") from err
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InspectorError(f"{url}: not an address like http://host:9090")
    if parts.username is not None or parts.query or parts.fragment:
        raise InspectorError("the address of a Prometheus must not have a user, query or fragment")
    return url.rstrip("/")


def _read(answer: Any) -> bytes:
    """Return the body of an HTTP answer. Raises TimeoutError, InspectorError."""
    deadline = time.monotonic() + ANSWER_S
    parts: list[bytes] = []
    size = 0
    while part := answer.read(_CHUNK_BYTES):
        size += len(part)
        if size > _ANSWER_BYTES_MAX:
            raise InspectorError("the answer is too long; ask for one job")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all of the answer in {ANSWER_S:.0f} s")
        parts.append(part)
    return b"".join(parts)


def _reason(err: urllib.error.HTTPError) -> str:
    """Return why the server refused a query; Prometheus gives its reason as JSON."""
    try:
        words = json.loads(err.read(_CHUNK_BYTES))["error"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        words = ""
    return f"HTTP {err.code} {err.reason}" + (
        f": {words}" if isinstance(words, str) and words else ""
    )


def _is_figure(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= _VALUE_MAX


def _samples(body: bytes) -> list[PromSample]:
    """Return the samples of an answer. Raises one of _NOT_AN_ANSWER if it is anything else."""
    answer = json.loads(body)
    if answer["status"] != "success" or answer["data"]["resultType"] != "vector":
        raise ValueError("not a vector")
    found = []
    for item in answer["data"]["result"]:
        value = float(item["value"][1])
        labels = item["metric"]
        if not all(isinstance(word, str) for word in labels.values()):
            raise ValueError("invalid labels")
        if _is_figure(value):
            found.append(PromSample(labels, value))
    return found


def _tracks(body: bytes, refused: Counter[str]) -> list[PromTrack]:
    """Return the series of an answer. Raises one of _NOT_AN_ANSWER if it is anything else.

    A series that cannot be used is left out and counted in `refused`, by reason.
    """
    answer = json.loads(body)
    if answer["status"] != "success" or answer["data"]["resultType"] != "matrix":
        raise ValueError("not a matrix")
    found = []
    for item in answer["data"]["result"]:
        try:
            labels = item["metric"]
            if not all(isinstance(word, str) for word in labels.values()):
                raise ValueError("invalid labels")
            points = [(float(at), float(value)) for at, value in item["values"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            refused["odd_series"] += 1
            continue
        known = [point for point in points if all(map(_is_figure, point))]
        if any(later[0] <= earlier[0] for earlier, later in pairwise(known)):
            refused["time_goes_back"] += 1
        else:
            found.append(PromTrack(labels, tuple(known)))
    return found


class Api:
    """The HTTP interface of one Prometheus."""

    def __init__(self, url: str) -> None:
        """Check the URL; nothing is asked yet.

        Raises:
            InspectorError: it is not the address of a Prometheus.
        """
        self.url = check_url(url)

    def query(self, promql: str, at_s: float | None = None) -> list[PromSample]:
        """Return the samples of an instant query; values that are not finite are left out.

        `at_s`: the Unix time that the query is about; None: now.

        Raises:
            InspectorError: no answer, a refusal, or not the answer of a Prometheus.
        """
        fields = {"query": promql} | ({} if at_s is None else {"time": f"{at_s:.3f}"})
        body = self._ask("query", fields)
        try:
            return _samples(body)
        except _NOT_AN_ANSWER as err:
            raise InspectorError(f"{self.url}: not the answer of a Prometheus") from err

    def query_range(
        self, promql: str, start_s: float, end_s: float, step_s: float, refused: Counter[str]
    ) -> list[PromTrack]:
        """Return the series of a range query; `refused` counts the unusable ones, by reason.

        Raises:
            InspectorError: no answer, a refusal, or not the answer of a Prometheus.
        """
        fields = {"query": promql, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}
        body = self._ask("query_range", fields | {"step": f"{step_s:g}"})
        try:
            return _tracks(body, refused)
        except _NOT_AN_ANSWER as err:
            raise InspectorError(f"{self.url}: not the answer of a Prometheus") from err

    def _ask(self, what: str, fields: dict[str, str]) -> bytes:
        """Return the body of an answer. Raises InspectorError."""
        request = urllib.request.Request(  # noqa: S310 - check_url
            f"{self.url}/api/v1/{what}",
            data=urllib.parse.urlencode(fields).encode(),
            headers={"User-Agent": f"nccl-inspector/{__version__}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=SOCKET_S) as answer:  # noqa: S310
                return _read(answer)
        except urllib.error.HTTPError as err:
            raise InspectorError(f"{self.url}: {_line(_reason(err))}") from err
        except (OSError, http.client.HTTPException, ValueError) as err:
            cause = err.reason if isinstance(err, urllib.error.URLError) else err
            words = cause.strerror if isinstance(cause, OSError) else ""
            raise InspectorError(f"{self.url}: {_line(words or str(cause))}") from err


def _line(text: str) -> str:
    """Return a server's text as one line of at most 300 characters, without control characters."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in text)
    return plain[:300]
