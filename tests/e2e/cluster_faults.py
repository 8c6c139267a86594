#!/usr/bin/env python3
"""Takes workers away from `millrace up` while it streams: with SIGKILL and SIGSTOP, by draining.
Every stream must be byte for byte what one process answers.

Usage: cluster_faults.py PROGRAM MODEL [--faults N] [--streams N] [unittest arguments]
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("model")
parser.add_argument("--faults", type=int, default=4)
parser.add_argument("--streams", type=int, default=8)
parser.add_argument("--seed", type=int, default=1)
options, rest = parser.parse_known_args()
PROGRAM = str(pathlib.Path(options.program).resolve())
START_LIMIT_S = 120
STREAM_LIMIT_S = 180
TOKENS = 160


class Server:
    """A `millrace` that serves, and its port."""

    def __init__(self, *arguments):
        self.lines = []
        self.process = subprocess.Popen([PROGRAM, *arguments, "--port", "0"], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.served = threading.Event()
        self.port = None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        if not self.served.wait(START_LIMIT_S):
            raise AssertionError("it does not serve:\n" + "".join(self.lines))
        self.wait_until_ready()

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

    def stream(self, request):
        """The text of a streamed completion, and when its pieces came."""
        with self.connect() as connection:
            return self.read_stream(connection, request)

    @staticmethod
    def read_stream(connection, request):
        connection.request("POST", "/v1/completions", json.dumps({**request, "stream": True}),
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
            text += event["choices"][0]["text"]
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

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.reader.join(10)
            self.process.stdout.close()


def requests(count):
    return [{"prompt": f"Once upon a time number {i} there was", "max_tokens": TOKENS, "seed": i,
             "temperature": 0 if i % 2 == 0 else 0.9, "ignore_eos": True} for i in range(count)]


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single = Server("serve", options.model)
        cls.asked = requests(options.streams)
        with concurrent.futures.ThreadPoolExecutor(options.streams) as pool:
            cls.expected = [text for text, _ in pool.map(single.stream, cls.asked)]
        single.stop()

    def start(self, *arguments):
        server = Server("up", options.model, *arguments)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def check(self, server, disturb, rounds=1):
        """Streams all requests while `disturb` runs; the texts must be the expected ones."""
        gaps = []
        for _ in range(rounds):
            with concurrent.futures.ThreadPoolExecutor(options.streams + 1) as pool:
                streams = [pool.submit(server.stream, request) for request in self.asked]
                disturb(server, lambda: all(s.done() for s in streams))
                for stream, expected in zip(streams, self.expected):
                    text, times = stream.result(STREAM_LIMIT_S)
                    self.assertEqual(text, expected)
                    gaps.append(max((b - a for a, b in zip(times, times[1:])), default=0))
        return gaps

    def test_two_and_three_stages_answer_like_one_process(self):
        for workers in ("2", "3"):
            server = self.start("--workers", workers)
            self.check(server, lambda *_: None)
            self.assertEqual(server.stop(), 0)

    def test_tensor_parallel_stages_answer_like_one_process(self):
        server = self.start("--workers", "2", "--tensor-parallel-size", "2")
        self.check(server, lambda *_: None)

    def test_killed_and_stopped_workers_cost_no_token(self):
        server = self.start("--workers", "2")
        rng = random.Random(options.seed)
        print(f"seed {options.seed}, {options.faults} faults", flush=True)

        def disturb(server, over):
            time.sleep(rng.uniform(0.05, 0.4))
            name, pid = rng.choice(sorted(server.workers().items()))
            kind = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            os.kill(pid, kind)
            if kind == signal.SIGSTOP:
                time.sleep(rng.choice([0.5, 4]))
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass

        for i in range(options.faults):
            gaps = self.check(server, disturb)
            print(f"fault {i}: longest gap of a stream {max(gaps):.2f} s", flush=True)
        status = json.loads(server.get("/cluster/status")[1])
        self.assertEqual(status["requests"], 0)
        self.assertGreaterEqual(status["counters"]["workers_lost"], 1)
        for lane in status["lanes"]:
            self.assertEqual(lane["requests"], 0)
        self.assertEqual(server.stop(), 0)

    def test_drained_workers_hand_over(self):
        server = self.start("--workers", "3")

        def drain(server, over):
            time.sleep(0.2)
            code, body = server.post("/cluster/drain", {"worker": "worker-2"})
            self.assertEqual(code, 200, body)

        self.check(server, drain)
        self.check(server, lambda *_: None)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
