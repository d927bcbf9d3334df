"""Questions to the cluster's Prometheus."""

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of an instant query: `time` in seconds since 1970."""

    labels: dict[str, str]
    value: float
    time: float


def get(url: str, timeout: float = 5) -> str:
    """The body of an HTTP answer.

    Raises:
        ClusterError: no answer, or not a 200.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310 - our own http
            return str(answer.read().decode())
    except urllib.error.HTTPError as err:
        raise ClusterError(f"{url}: {err}: {err.read().decode(errors='replace').strip()}") from err
    except OSError as err:
        raise ClusterError(f"{url}: {err}") from err


def query(base: str, promql: str, at: float | None = None, timeout: float = 5) -> list[Sample]:
    """An instant query, now or at a Unix time; a scalar is one sample without labels.

    Raises:
        ClusterError: Prometheus does not answer or refuses the expression.
    """
    words = {"query": promql} | ({} if at is None else {"time": repr(at)})
    url = f"{base}/api/v1/query?{urllib.parse.urlencode(words)}"
    data = json.loads(get(url, timeout))["data"]
    if data["resultType"] == "scalar":
        return [Sample({}, float(data["result"][1]), float(data["result"][0]))]
    return [
        Sample(item["metric"], float(item["value"][1]), float(item["value"][0]))
        for item in data["result"]
    ]


def history(base: str, selector: str, seconds: int, at: float | None = None) -> list[Sample]:
    """Every stored sample of the series in the `seconds` before now or a Unix time, in order.

    Raises:
        ClusterError: Prometheus does not answer or refuses the selector.
    """
    words = {"query": f"{selector}[{seconds}s]"} | ({} if at is None else {"time": repr(at)})
    data = json.loads(get(f"{base}/api/v1/query?{urllib.parse.urlencode(words)}"))["data"]
    return [
        Sample(series["metric"], float(value), float(stamp))
        for series in data["result"]
        for stamp, value in series["values"]
    ]


def rule_files(base: str) -> set[str]:
    """The files that it has rules from, without folder and ending. Raises ClusterError."""
    groups = json.loads(get(f"{base}/api/v1/rules"))["data"]["groups"]
    return {Path(group["file"]).stem for group in groups}


def alerts(base: str) -> list[dict[str, dict[str, str]]]:
    """The alerts that fire, each with `labels` and `annotations`. Raises ClusterError."""
    found = json.loads(get(f"{base}/api/v1/alerts"))["data"]["alerts"]
    return [one for one in found if one["state"] == "firing"]
