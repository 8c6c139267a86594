"""Controllers that die or are stopped under streams: processes, clients that come back, and what one
undisturbed process sends. For scripts called as SCRIPT PROGRAM MODEL [--streams N] [--kills N]
[unittest arguments]."""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import pathlib
import signal
import time

from harness.cases import FolderTest
from harness.http import ANSWER_LIMIT_S, Api, events, send
from harness.ports import free_port
from harness.processes import Process, make_token
from harness.waiting import wait_for

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("model")
parser.add_argument("--streams", type=int, default=8)
parser.add_argument("--kills", type=int, default=2)
options, rest = parser.parse_known_args()
PROGRAM = str(pathlib.Path(options.program).resolve())
TOKENS = 240
GRACE = ("--resume-grace", "60")


class Stream:
    """One streamed completion, asked for until it is whole, at any of the ports."""

    def __init__(self, ports, request, patience_s=ANSWER_LIMIT_S):
        self.ports = ports
        self.patience_s = patience_s  # without a byte, before it asks elsewhere
        self.request = {**request, "stream": True}
        self.events = []  # (id, data)
        self.errors = []  # as events: the answer goes on elsewhere
        self.connections = 0
        self.longest_gap_s = 0.0
        prompts = request["prompt"] if isinstance(request["prompt"], list) else [""]
        self.choices = len(prompts) * request.get("n", 1)

    @property
    def done(self):
        return bool(self.events) and self.events[-1][1] == "[DONE]"

    def run(self):
        end = time.monotonic() + ANSWER_LIMIT_S
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
        headers = {"Last-Event-ID": self.events[-1][0]} if self.events else {}
        api = Api(port)
        api.limit_s = self.patience_s
        with api.connect() as connection:
            reply = send(connection, "POST", "/v1/completions", self.request, headers)
            if reply.status == 503:
                return
            if reply.status != 200:
                raise AssertionError(f"{reply.status} {reply.read().decode()} after {headers}")
            self.connections += 1
            last = time.monotonic()
            for number, data in events(reply):
                self.longest_gap_s = max(self.longest_gap_s, time.monotonic() - last)
                last = time.monotonic()
                if data is None:
                    continue  # a comment, while the stream is silent
                if data.startswith('{"error"'):
                    self.errors.append((number, data))
                    return
                self.events.append((number, data))

    def by_choice(self):
        """What each choice has, whatever the order in which they took turns."""
        choices = {}
        for _, data in self.content():
            if data == "[DONE]":
                continue
            for choice in json.loads(data)["choices"]:
                choices.setdefault(choice["index"], []).append(choice)
        return choices

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


def wide_requests():
    """Of several prompts and choices, with log-probabilities and echoes."""
    prompts = ["Once upon a time", "The old man", "Nobody"]
    asked = [{"prompt": prompts}, {"prompt": prompts[:2], "n": 2, "logprobs": 3},
             {"prompt": prompts[0], "logprobs": 0}, {"prompt": prompts[1], "n": 3},
             {"prompt": prompts, "echo": True, "logprobs": 1}]
    return [{"max_tokens": TOKENS, "seed": i, "temperature": 0 if i % 2 == 0 else 0.9,
             "ignore_eos": True, "request_id": f"wide-{i}", **request}
            for i, request in enumerate(asked)]


class ClusterTest(FolderTest):
    asks_wide = False

    @classmethod
    def setUpClass(cls):
        port = free_port()
        single = Process(PROGRAM, "serve", options.model, "--port", str(port), *GRACE)
        single.wait_for("Serving")
        cls.asked = requests(options.streams)
        cls.expected = [s.content() for s in cls.run_all([Stream([port], r) for r in cls.asked])]
        cls.wide = wide_requests() if cls.asks_wide else []
        cls.wide_expected = [s.by_choice()
                             for s in cls.run_all([Stream([port], r) for r in cls.wide])]
        single.stop()

    @staticmethod
    def run_all(streams):
        with concurrent.futures.ThreadPoolExecutor(len(streams) or 1) as pool:
            return list(pool.map(Stream.run, streams))

    def setUp(self):
        super().setUp()
        self.token = make_token(PROGRAM, self.folder)
        self.started = []
        self.addCleanup(self.stop_all)

    def stop_all(self):
        for process in self.started:
            if "worker" in process.process.args:  # the last would wait for somebody to take over
                process.kill()
            process.stop()

    def begin(self, *arguments):
        process = Process(PROGRAM, *arguments)
        self.started.append(process)
        return process

    def start(self, *arguments):
        return self.begin(*arguments, "--token", self.token)

    def workers(self, *ports):
        join = [f"127.0.0.1:{port}" for port in ports]
        return [self.start("worker", options.model, "--name", name, "--threads", "1",
                           "--kv-cache-memory", "64MiB", "--join", *join) for name in ("a", "b")]

    def check_numbers(self, streams):
        for stream in streams:
            name = stream.request["request_id"]
            self.assertEqual([number for number, _ in stream.events],
                             [f"cmpl-{name}:{i + 1}" for i in range(len(stream.events))])

    def check_workers(self, workers):
        """They still have the weights that they loaded at first."""
        for worker in workers:
            self.assertEqual(len(worker.said("are loaded")), 1, worker.output)

    def check(self, streams, workers):
        self.check_numbers(streams)
        for stream, expected in zip(streams, self.expected):
            self.assertEqual(stream.content(), expected)
        self.check_workers(workers)
        print(f"{len(streams)} streams whole; longest gap "
              f"{max(s.longest_gap_s for s in streams):.2f} s within a connection; connections "
              f"{[s.connections for s in streams]}", flush=True)

    def wait_until_under_way(self, streams, share):
        """Until every stream has begun and all together have that share of their events."""
        whole = TOKENS * sum(s.choices for s in streams)
        wait_for(lambda: all(s.events for s in streams) and
                 sum(len(s.events) for s in streams) >= share * whole, "the streams go on",
                 ANSWER_LIMIT_S, 0.005)

    def kill_under(self, streams, controller, share, how=signal.SIGKILL):
        self.wait_until_under_way(streams, share)
        running = sum(not s.done for s in streams)
        controller.send_signal(how)
        if how == signal.SIGKILL:
            controller.process.wait()
        killed = time.monotonic()
        self.assertGreater(running, 0, "nothing ran any more")
        print(f"{how.name} with {running} of {len(streams)} streams running", flush=True)
        return killed
