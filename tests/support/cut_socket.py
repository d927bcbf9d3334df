# SPDX-License-Identifier: Apache-2.0
"""A socket before a server that can be cut: then nothing comes through, and nobody is told."""

import selectors
import socket
import threading
from contextlib import suppress
from pathlib import Path


class CutSocket:
    """Hands on between its own socket, in `folder`, and that of the server, by the same name."""

    def __init__(self, folder: Path, server: Path) -> None:
        """Begin to hand on."""
        self._server, self._is_whole = server, threading.Event()
        self._is_whole.set()
        folder.mkdir()
        folder.chmod(0o755)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / server.name))
        (folder / server.name).chmod(0o777)
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let nothing through in either direction; nobody is told."""
        self._is_whole.clear()

    def mend(self) -> None:
        """Hand on again; connections of before are closed."""
        self._is_whole.set()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._hand_on, args=(client,), daemon=True).start()

    def _hand_on(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:
            if not self._is_whole.is_set():
                self._is_whole.wait()
                return
            server.connect(str(self._server))
            with selectors.DefaultSelector() as ready:
                ready.register(client, selectors.EVENT_READ, server)
                ready.register(server, selectors.EVENT_READ, client)
                while True:
                    for key, _ in ready.select():
                        source = key.fileobj
                        assert isinstance(source, socket.socket)
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        if not self._is_whole.is_set():
                            self._is_whole.wait()
                            return
                        key.data.sendall(data)
