# SPDX-License-Identifier: Apache-2.0
"""Which of several controller services works: the one that holds a lease in the database.

A child renews the lease, so that a database that hangs does not stop the service, and a service
that hangs does not keep the lease. The child renews only while the service gives signs of life, and
ends with it. The service works only until the end of the lease, which it counts on its own steady
clock from before it asked for it. So two services do not work at the same time, whatever is cut
off, except for a report that was begun in time. (In a virtual machine that is paused this clock
stands still: then both work for some seconds, and the reports of one replace those of the other.)
"""

import mmap
import os
import secrets
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from functools import partial

from nccl_inspector.errors import InspectorError
from nccl_inspector.store.lease_row import give_lease, take_lease
from nccl_inspector.system.child_process import start_child
from nccl_inspector.system.printable import printable

LEASE_S, RENEW_S = 10.0, 2.0
BEAT_OLD_S = 12.0  # without a sign of life for so long the lease is not renewed
GIVE_S = 5.0  # to give it back; a database that does not answer then lets it run out
_LOOK_S = 0.02
_WORDS_BYTES = 400
# Until when it is held, the last sign of life (both of time.monotonic()), length and text.
_SHARED = struct.Struct(f"=ddI{_WORDS_BYTES}s")


class Lease:
    """The lease of this process; `words` says why it is not held."""

    def __init__(self, url: str, cluster: str, *, needs_life: bool = True) -> None:
        """Begin to ask for it, in a child. `needs_life`: it is renewed only after signs of life."""
        self._url, self._cluster, self._needs_life = url, cluster, needs_life
        self._host = socket.gethostname()
        self._holder = f"{self._host} {os.getpid()} {secrets.token_hex(4)}"
        self._shared = mmap.mmap(-1, _SHARED.size)
        self._keeper, self._life = 0, -1
        self._write(0.0, "no answer yet")
        self.beat()

    def _read(self) -> tuple[float, float, str]:
        until_s, beat_s, length, words = _SHARED.unpack(self._shared[: _SHARED.size])
        return until_s, beat_s, words[:length].decode("utf-8", "replace")

    def _write(self, until_s: float, words: str) -> None:
        """Say until when the lease is held, and what is known beside."""
        data = words.encode("utf-8", "replace")[:_WORDS_BYTES]
        struct.pack_into("=d", self._shared, 0, until_s)
        struct.pack_into(f"=I{_WORDS_BYTES}s", self._shared, 16, len(data), data)

    @property
    def is_held(self) -> bool:
        """Whether this service is the one that works."""
        return time.monotonic() < self._read()[0]

    @property
    def words(self) -> str:
        """Who holds it, or why nothing is known."""
        return self._read()[2]

    def beat(self) -> None:
        """Give a sign of life; start the child that renews the lease, if it does not run."""
        struct.pack_into("=d", self._shared, 8, time.monotonic())
        if self._keeper and not os.waitpid(self._keeper, os.WNOHANG)[0]:
            return
        self._forget_keeper()
        try:
            self._start_keeper()
        except OSError as err:  # the next sign of life tries again; until then the lease runs out
            self._write(self._read()[0], f"no process can be started: {err.strerror}")

    def _start_keeper(self) -> None:
        reading, life = os.pipe2(os.O_CLOEXEC)
        try:
            self._keeper = start_child(partial(self._keep, reading), [reading])
            self._life = life
        except OSError:
            os.close(life)
            raise
        finally:
            os.close(reading)

    def give_way(self) -> None:
        """Do nothing: the lease is kept as long as it is renewed."""

    def _forget_keeper(self) -> None:
        if self._life >= 0:
            os.close(self._life)
        self._keeper, self._life = 0, -1

    def close(self) -> None:
        """Give the lease back, so that another service goes on at once; wait for that a little."""
        keeper, until_s = self._keeper, time.monotonic() + GIVE_S
        self._forget_keeper()
        with suppress(ChildProcessError):
            while keeper and not os.waitpid(keeper, os.WNOHANG)[0]:
                if time.monotonic() >= until_s:
                    os.kill(keeper, signal.SIGKILL)
                    until_s = float("inf")
                time.sleep(_LOOK_S)

    def _keep(self, life: int) -> None:
        """Renew the lease until the service ends; systemd's SIGTERM goes to both."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        while not select.select([life], [], [], 0)[0]:
            self._renew()
            select.select([life], [], [], RENEW_S)
        with suppress(InspectorError):
            give_lease(self._url, self._cluster, self._holder)

    def _renew(self) -> None:
        held_s, beat_s, _ = self._read()
        asked_s = time.monotonic()
        if self._needs_life and asked_s - beat_s > BEAT_OLD_S:
            return
        try:
            holder = take_lease(self._url, self._cluster, self._holder, LEASE_S)
        except InspectorError as err:
            self._write(held_s, str(err))
            return
        if holder == self._holder:
            self._write(asked_s + LEASE_S, "the database does not answer")  # if it runs out
        else:
            host = printable(holder.partition(" ")[0])
            self._write(0.0, f"the service on {host} works on these jobs")
