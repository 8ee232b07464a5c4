"""Stands between a client and PostgreSQL on loopback, and cuts the connection at a chosen message
of the client's.
"""

import contextlib
import socket
import threading


class Proxy:
    """Listens on `port`. After `arm(word, when)` the next client message with that word cuts its
    connection:

    "before": the message never reaches the server. "after": it does, the server answers, and the
    answer is thrown away. "at once": the client is cut off while the server is still at it.
    """

    def __init__(self, port):
        self._server_port = port
        self._armed = None
        self.cuts = 0
        self._answered = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, word, when):
        self._answered.clear()
        self._armed = word, when

    def close(self):
        self._listening.close()

    def _accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
            mute = threading.Event()
            answers = threading.Thread(
                target=self._answer, args=(server, client, mute), daemon=True
            )
            answers.start()
            while data := _received(client):
                word, when = self._armed or (None, None)
                if word is not None and word in data:
                    self._armed = None
                    self.cuts += 1
                    if when != "before":
                        mute.set()
                        server.sendall(data)
                    if when == "after":
                        self._answered.wait(120)
                    break
                server.sendall(data)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            server.shutdown(socket.SHUT_WR)  # it still gets, and works on, what was sent
            answers.join(120)

    def _answer(self, server, client, mute):
        with contextlib.suppress(OSError):
            while data := _received(server):
                if mute.is_set():
                    return self._answered.set()
                client.sendall(data)


def _received(side):
    try:
        return side.recv(65536)
    except OSError:
        return b""
