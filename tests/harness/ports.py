"""Ports of this machine."""
import contextlib
import socket
import threading
import time

LINK_BYTES = 65536  # read at once
LINK_POLL_S = 0.01


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Link:
    """A port of this machine that leads to another, unless it is held up or slow. What is held up
    arrives later, as over a network that was cut and heals. `change`: what becomes of the bytes that
    a client sends."""

    def __init__(self, to_port, change=None):
        self.to_port, self.change = to_port, change
        self.held_until = 0.0
        self.delay_s = 0.0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def hold(self, seconds):
        self.held_until = time.monotonic() + seconds

    def accept(self):
        while True:
            try:
                one, _ = self.listener.accept()
            except OSError:
                return  # closed
            try:
                other = socket.create_connection(("127.0.0.1", self.to_port))
            except OSError:
                one.close()
                continue
            for way in ((one, other, self.change), (other, one, None)):
                threading.Thread(target=self.carry, args=way, daemon=True).start()

    def carry(self, source, sink, change):
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(LINK_BYTES)
                while time.monotonic() < self.held_until:
                    time.sleep(LINK_POLL_S)
                if not data:
                    break
                if self.delay_s > 0:
                    time.sleep(self.delay_s)
                sink.sendall(change(data) if change else data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self.listener.close()
