#!/usr/bin/env python3
"""Kills the controller of a cluster while it streams, and starts it again or lets a standby take
over. Clients come back with Last-Event-ID: each must have every event of its stream once, byte for
byte what one undisturbed process sends, and workers must not load their layers again.

Usage: controller_restart.py PROGRAM MODEL [--streams N] [--kills N] [unittest arguments]
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("model")
parser.add_argument("--streams", type=int, default=8)
parser.add_argument("--kills", type=int, default=2)
options, rest = parser.parse_known_args()
PROGRAM = str(pathlib.Path(options.program).resolve())
START_LIMIT_S = 120
STREAM_LIMIT_S = 180
TOKENS = 240
GRACE = ("--resume-grace", "60")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A `millrace` command and what it says."""

    def __init__(self, *arguments):
        self.lines = []
        self.process = subprocess.Popen([PROGRAM, *arguments], text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def said(self, pattern):
        return [line for line in list(self.lines) if re.search(pattern, line)]

    def wait_for(self, pattern):
        end = time.monotonic() + START_LIMIT_S
        while not self.said(pattern):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"never said {pattern}:\n" + "".join(self.lines))
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.reader.join(10)
        self.process.stdout.close()
        return self.process.returncode


class Stream:
    """One streamed completion, asked for until it is whole, at any of the ports."""

    def __init__(self, ports, request):
        self.ports = ports
        self.request = {**request, "stream": True}
        self.events = []  # (id, data)
        self.connections = 0
        self.longest_gap_s = 0.0

    @property
    def done(self):
        return bool(self.events) and self.events[-1][1] == "[DONE]"

    def run(self):
        end = time.monotonic() + STREAM_LIMIT_S
        turn = 0
        while not self.done:
            if time.monotonic() > end:
                raise AssertionError(f"{self.request['request_id']} is not whole: {self.events[-1:]}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.read_on(self.ports[turn % len(self.ports)])
            turn += 1
            if not self.done:
                time.sleep(0.05)
        return self

    def read_on(self, port):
        headers = {"Content-Type": "application/json"}
        if self.events:
            headers["Last-Event-ID"] = self.events[-1][0]
        with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", port, timeout=STREAM_LIMIT_S)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(self.request), headers)
            reply = connection.getresponse()
            if reply.status == 503:
                return
            if reply.status != 200:
                raise AssertionError(f"{reply.status} {reply.read().decode()} after {headers}")
            self.connections += 1
            number, last = None, time.monotonic()
            for raw in reply:
                line = raw.decode()
                if not line.endswith("\n"):
                    return  # cut within a line
                if line.startswith("id: "):
                    number = line[4:].strip()
                elif line.startswith("data: "):
                    pending = (number, line[6:].strip())
                elif line == "\n":
                    self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - last)
                    last = time.monotonic()
                    self.events.append(pending)

    def content(self):
        """The events without what differs between any two runs: when it was created."""
        created = set()
        content = []
        for number, data in self.events:
            if data != "[DONE]":
                data = json.loads(data)
                created.add(data.pop("created"))
                data = json.dumps(data)
            content.append((number, data))
        if len(created) > 1:
            raise AssertionError(f"one stream was created at {created}")
        return content


def requests(count):
    """Greedy and seeded ones; some stop at a text, some tell usage."""
    asked = []
    for i in range(count):
        request = {"prompt": f"Once upon a time number {i} there was", "max_tokens": TOKENS,
                   "seed": i, "temperature": 0 if i % 2 == 0 else 0.9, "ignore_eos": True,
                   "request_id": f"stream-{i}", "stream_options": {"include_usage": i % 3 == 0}}
        if i % 4 == 3:
            request["stop"] = ["zzzz", "."]
            request["min_tokens"] = TOKENS // 2
        asked.append(request)
    return asked


class ControllerDies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        port = free_port()
        single = Process("serve", options.model, "--port", str(port), *GRACE)
        single.wait_for("Serving")
        cls.asked = requests(options.streams)
        cls.expected = [s.content() for s in cls.run_all([Stream([port], r) for r in cls.asked])]
        single.stop()

    @staticmethod
    def run_all(streams):
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            return list(pool.map(Stream.run, streams))

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.token = str(self.folder / "cluster.token")
        subprocess.run([PROGRAM, "token", "--out", self.token], check=True, capture_output=True)
        self.started = []
        self.addCleanup(self.stop_all)

    def stop_all(self):
        for process in self.started:
            if "worker" in process.process.args:  # the last would wait for somebody to take over
                process.kill()
            process.stop()

    def start(self, *arguments):
        process = Process(*arguments, "--token", self.token)
        self.started.append(process)
        return process

    def controller(self, port, workers_port):
        return self.start("serve", options.model, "--cluster", f"sqlite:{self.folder / 'state'}",
                          "--listen", f"127.0.0.1:{workers_port}", "--port", str(port),
                          "--pipeline-parallel-size", "2", *GRACE)

    def workers(self, *ports):
        join = [f"127.0.0.1:{port}" for port in ports]
        return [self.start("worker", options.model, "--name", name, "--threads", "1",
                           "--kv-cache-memory", "64MiB", "--join", *join) for name in ("a", "b")]

    def check(self, streams, workers):
        for stream, expected in zip(streams, self.expected):
            content = stream.content()
            name = stream.request["request_id"]
            self.assertEqual([number for number, _ in content],
                             [f"cmpl-{name}:{i + 1}" for i in range(len(content))])
            self.assertEqual(content, expected)
        for worker in workers:
            self.assertEqual(len(worker.said("are loaded")), 1, "".join(worker.lines))
        print(f"{len(streams)} streams whole; longest gap "
              f"{max(s.longest_gap_s for s in streams):.2f} s within a connection; connections "
              f"{[s.connections for s in streams]}", flush=True)

    def kill_under(self, streams, controller, share):
        """Once every stream has begun and all together have that share of their events."""
        whole = sum(len(events) for events in self.expected)
        end = time.monotonic() + STREAM_LIMIT_S
        while not all(s.events for s in streams) or (
                sum(len(s.events) for s in streams) < share * whole):
            self.assertLess(time.monotonic(), end, "".join(controller.lines))
            time.sleep(0.005)
        running = sum(not s.done for s in streams)
        controller.kill()
        killed = time.monotonic()
        self.assertGreater(running, 0, "nothing ran any more")
        print(f"killed with {running} of {len(streams)} streams running", flush=True)
        return killed

    def test_started_again_it_goes_on(self):
        port, workers_port = free_port(), free_port()
        controller = self.controller(port, workers_port)
        workers = self.workers(workers_port)
        controller.wait_for("every layer")
        streams = [Stream([port], request) for request in self.asked]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            for kill in range(options.kills):
                killed = self.kill_under(streams, controller, 0.7 * (kill + 1) / options.kills)
                controller = self.controller(port, workers_port)
                controller.wait_for("every layer")
                print(f"all layers again after {time.monotonic() - killed:.2f} s", flush=True)
                self.assertEqual(len(controller.said("streams go on")), 1)
            for one in running:
                one.result(STREAM_LIMIT_S)
        self.check(streams, workers)
        # Who has lost all of it may still fetch the whole.
        for stream in streams:
            again = Stream([port], stream.request)
            again.events = [(f"cmpl-{stream.request['request_id']}:0", "")]
            again.run()
            self.assertEqual(again.events[1:], stream.events)
        self.assertEqual(controller.stop(), 0, "".join(controller.lines))

    def test_a_standby_takes_over(self):
        ports, workers_ports = [free_port(), free_port()], [free_port(), free_port()]
        leader = self.controller(ports[0], workers_ports[0])
        leader.wait_for("leading, term")
        standby = self.controller(ports[1], workers_ports[1])
        workers = self.workers(*workers_ports)
        leader.wait_for("every layer")
        standby.wait_for("standing by")
        streams = [Stream(ports, request) for request in self.asked]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            killed = self.kill_under(streams, leader, 0.4)
            standby.wait_for("every layer")
            print(f"all layers again after {time.monotonic() - killed:.2f} s", flush=True)
            for one in running:
                one.result(STREAM_LIMIT_S)
        self.check(streams, workers)

    def test_nobody_waits_for_what_had_no_stream(self):
        port, workers_port = free_port(), free_port()
        controller = self.controller(port, workers_port)
        self.workers(workers_port)
        controller.wait_for("every layer")

        def ask():
            with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(
                    http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("POST", "/v1/completions", json.dumps(
                    {"prompt": "x", "max_tokens": 900, "ignore_eos": True}),
                                   {"Content-Type": "application/json"})
                connection.getresponse().read()

        client = threading.Thread(target=ask)
        client.start()
        time.sleep(0.3)
        controller.kill()
        client.join()
        controller = self.controller(port, workers_port)
        controller.wait_for("every layer")
        self.assertEqual(len(controller.said("0 streams go on.* 1 requests end")), 1,
                         "".join(controller.lines))
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", "/cluster/status")
            self.assertEqual(json.loads(connection.getresponse().read())["requests"], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
