# SPDX-License-Identifier: Apache-2.0
"""Ask who serves metrics on this host for the page, and find the agent's own series in it."""

import re
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from nccl_inspector.errors import InspectorError

LAST_PASS = "nccl_inspector_agent_last_pass_timestamp_seconds"  # noqa: S105 - no password
PAGE_BYTES_MAX = 64 << 20
_PASS = re.compile(
    rf"^{LAST_PASS}(?:\{{[^\n]*\}})? ([0-9]{{1,18}}(?:\.[0-9]{{1,18}})?(?:e\+?[0-9]{{1,2}})?)$",
    re.M,
)
# Who listens everywhere is asked here.
_HERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - no listening here


def page_url(listen: str, path: str = "/metrics") -> str:
    """Return the address at which this host asks who listens at `listen` (`:9435`, `[::]:9435`)."""
    host, _, port = listen.rpartition(":")
    return f"http://{_HERE.get(host, host)}:{port}{path}"


def read_page(url: str, seconds: float) -> str:
    """Return the text of a page, at most PAGE_BYTES_MAX; `seconds`: how long a part may take.

    Raises:
        InspectorError: nobody answers there, or not with a page; the text has no address.
    """
    parts = urlsplit(url)
    try:
        with closing(HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)) as http:
            http.request("GET", parts.path)
            answer = http.getresponse()
            data = answer.read(PAGE_BYTES_MAX)
    except (OSError, HTTPException, ValueError) as err:
        raise InspectorError(str(err) or type(err).__name__) from err
    if answer.status != HTTPStatus.OK:
        raise InspectorError(f"HTTP status {answer.status}")
    return data.decode("utf-8", "replace")


def last_pass_s(text: str) -> float | None:
    """Return when an agent last passed (Unix time), the newest; None: no agent is in the page."""
    return max(map(float, _PASS.findall(text)), default=None)
