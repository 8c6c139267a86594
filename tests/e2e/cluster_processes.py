"""Clusters as processes: `millrace` that serves, its workers, and links that can be held up."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

import cluster_resources

# Workers that measure take the processor from what a test times, and write to the user's cache.
os.environ.setdefault("MILLRACE_MEASURE_PROFILE", "false")

START_LIMIT_S = 120
STREAM_LIMIT_S = 180
SETTLE_LIMIT_S = 120
LINK_BYTES = 65536  # read at once
LINK_POLL_S = 0.01


class AdminConnection(http.client.HTTPConnection):
    """HTTP over the unix socket that a server has for its operators."""

    def __init__(self, path):
        super().__init__("localhost", timeout=STREAM_LIMIT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Process:
    """A `millrace` command and what it says."""

    def __init__(self, program, *arguments):
        self.lines = []
        self.process = subprocess.Popen([program, *arguments], text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def said(self, pattern):
        return [line for line in list(self.lines) if re.search(pattern, line)]

    def wait_for(self, pattern):
        """The first line that says so."""
        end = time.monotonic() + START_LIMIT_S
        while not self.said(pattern):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"never said {pattern}:\n" + "".join(self.lines))
            time.sleep(0.02)
        return self.said(pattern)[0]

    def connect_admin(self):
        """To the admin routes of one that serves."""
        path = re.search(r"on the unix socket ([^\s\"]+)", self.wait_for("on the unix socket")).group(1)
        return contextlib.closing(AdminConnection(path))

    def admin(self, method, path, body=None):
        with self.connect_admin() as connection:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def status(self):
        return json.loads(self.admin("GET", "/cluster/status")[1])

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.forget()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.forget()
        return self.process.returncode

    def forget(self):
        self.reader.join(10)
        self.process.stdout.close()


class Server(Process):
    """A `millrace` that serves, and its port."""

    def __init__(self, program, *arguments):
        self.served = threading.Event()
        self.port = None
        super().__init__(program, *arguments, "--port", "0")
        if not self.served.wait(START_LIMIT_S):
            raise AssertionError("it does not serve:\n" + "".join(self.lines))

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"Serving .* on http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                self.served.set()

    def connect(self):
        return contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=STREAM_LIMIT_S))

    def get(self, path):
        with self.connect() as connection:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def post(self, path, body):
        with self.connect() as connection:
            connection.request("POST", path, json.dumps(body),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def wait_until_ready(self):
        end = time.monotonic() + START_LIMIT_S
        while self.get("/ready")[0] != 200:
            if time.monotonic() > end:
                raise AssertionError("not ready:\n" + "".join(self.lines))
            time.sleep(0.05)

    def wait_for_status(self, wanted, limit_s=SETTLE_LIMIT_S):
        end = time.monotonic() + limit_s
        while not wanted(status := self.status()):
            if time.monotonic() > end:
                raise AssertionError(json.dumps(status))
            time.sleep(0.05)
        return status

    def stream(self, request):
        """The text of a streamed completion, or of a streamed chat with the names and arguments of
        its calls, and when the pieces came."""
        with self.connect() as connection:
            return self.read_stream(connection, request)

    @staticmethod
    def read_stream(connection, request):
        chat = "messages" in request
        connection.request("POST", "/v1/chat/completions" if chat else "/v1/completions",
                           json.dumps({**request, "stream": True}),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise AssertionError(reply.read().decode())
        text, times = "", []
        for raw in reply:
            line = raw.decode().strip()
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return text, times
            event = json.loads(line[6:])
            if "error" in event:
                raise AssertionError(str(event))
            choice = event["choices"][0]
            text += delta_text(choice["delta"]) if chat else choice["text"]
            times.append(time.monotonic())
        raise AssertionError("the stream broke off")

    def workers(self):
        """Processes by name."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            if int(parent) == self.process.pid and "worker" in words:
                found[words[words.index("--name") + 1]] = int(entry.name)
        return found

    def settle(self, workers):
        """Waits until all workers serve and nothing runs, and returns what is held then."""
        end = time.monotonic() + SETTLE_LIMIT_S
        while True:
            status = self.status()
            serving = [w for w in status["workers"] if w["state"] == "serving"]
            pids = list(self.workers().values())
            busy = (status["requests"] or status["moving"] or status["changing"] or
                    any(pipeline["blocks_used"] for pipeline in status["pipelines"]))
            if len(serving) == len(pids) == workers and not status["missing"] and not busy:
                break
            if time.monotonic() > end:
                raise AssertionError(f"it does not settle: {json.dumps(status)}")
            time.sleep(0.1)
        return cluster_resources.least(
            lambda: cluster_resources.sample(self.process.pid, pids, self.status()))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.forget()

    def close(self):
        """What is left of it ends."""
        if self.process.poll() is None:
            self.stop()


class Link:
    """A port of this machine that leads to another, unless it is held up or slow. What is held up
    arrives later, as over a network that was cut and heals."""

    def __init__(self, to_port):
        self.to_port = to_port
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
            for source, sink in ((one, other), (other, one)):
                threading.Thread(target=self.carry, args=(source, sink), daemon=True).start()

    def carry(self, source, sink):
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(LINK_BYTES)
                while time.monotonic() < self.held_until:
                    time.sleep(LINK_POLL_S)
                if not data:
                    break
                if self.delay_s > 0:
                    time.sleep(self.delay_s)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self.listener.close()


def delta_text(delta):
    """The text that a chunk of a chat adds: of the answer, or of its calls."""
    calls = [call["function"] for call in delta.get("tool_calls", [])]
    return (delta.get("content") or "") + "".join(
        call.get("name", "") + call.get("arguments", "") for call in calls)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Linked(Server):
    """A controller and workers of ours, each of whom reaches it over a link of its own."""

    def __init__(self, program, model, names):
        self.folder = tempfile.TemporaryDirectory()
        token = str(pathlib.Path(self.folder.name) / "cluster.token")
        subprocess.run([program, "token", "--out", token], check=True, capture_output=True)
        port = free_port()
        super().__init__(program, "serve", model, "--cluster", f"sqlite:{self.folder.name}/state",
                         "--listen", f"127.0.0.1:{port}", "--token", token,
                         "--pipeline-parallel-size", str(len(names)))
        self.links = {name: Link(port) for name in names}
        self.processes = {
            name: subprocess.Popen(
                [program, "worker", model, "--join", f"127.0.0.1:{link.port}", "--token", token,
                 "--name", name, "--threads", "1"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name, link in self.links.items()}

    def workers(self):
        return {name: process.pid for name, process in self.processes.items()
                if process.poll() is None}

    def stop(self):
        try:
            return super().stop()
        finally:
            self.close()

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        for link in self.links.values():
            link.close()
        if self.process.poll() is None:
            super().stop()
        self.folder.cleanup()


def answers_of_one_process(program, model, requests, *words):
    """What `serve` without a cluster answers to each of them."""
    server = Server(program, "serve", model, *words)
    try:
        server.wait_until_ready()
        return [server.stream(request)[0] for request in requests]
    finally:
        server.stop()
