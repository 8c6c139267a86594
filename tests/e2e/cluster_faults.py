#!/usr/bin/env python3
"""Takes workers away from a cluster while it streams: with SIGKILL and SIGSTOP, by cutting and
slowing their links to the controller, by draining. Every stream must be byte for byte what one process answers, and nothing may be held that was not
held before: descriptors, shared memory, KV blocks.

Usage: cluster_faults.py PROGRAM MODEL [--faults N] [--streams N] [--seed N] [unittest arguments]

Of each fault it prints how long the longest gap of a stream was and its two terms: detection, from
the fault until the controller counts a worker as lost, and replay, the rest. A long run alone:

    cluster_faults.py PROGRAM MODEL --faults 100 --streams 50 Faults.test_faults_cost_no_token \
        Faults.test_cut_and_slow_links_cost_no_token
"""
import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.http import ANSWER_LIMIT_S, UnixConnection, send  # noqa: E402
from harness.ports import Link, free_port  # noqa: E402
from harness.proc import threads_of  # noqa: E402
from harness.processes import Process, Server, make_token  # noqa: E402

import cluster_resources  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("model")
parser.add_argument("--faults", type=int, default=4)
parser.add_argument("--streams", type=int, default=8)
parser.add_argument("--seed", type=int, default=1)
options, rest = parser.parse_known_args()
PROGRAM = str(pathlib.Path(options.program).resolve())
TOKENS = 160
STATUS_EVERY_S = 0.02  # how finely detection is timed
PAUSE_S = (0.05, 0.4)  # from asking for the streams to the fault
# What is done to a worker, as often as it is named: SIGKILL; SIGSTOP for so long, which is noticed
# or not; a machine that runs a fifth of the time.
PROCESS_KINDS = ["kill", "stop 4 s", "kill", "starve 3 s", "kill", "stop 0.5 s", "kill"]
# To its link to the controller, while its peers reach it: held up for so long, slow for so long.
LINK_KINDS = ["cut 5 s", "cut 1 s", "slow link 3 s"]
STARVE_ON_S, STARVE_OFF_S = 0.02, 0.08
SLOW_LINK_DELAY_S = 0.05  # each way, for each read


# Outputs that are constrained have to be long too, so that faults meet them.
WORDS = {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 60}
OBJECT = {"type": "object", "properties": {"words": WORDS}, "required": ["words"]}
NOTE = {"type": "function", "function": {"name": "note", "parameters": OBJECT}}


def requests(count):
    """In turn: two free texts, one that matches a schema, one that calls a tool."""
    def request(i):
        prompt = f"Once upon a time number {i} there was"
        common = {"max_tokens": TOKENS, "seed": i, "temperature": 0 if i % 8 < 4 else 0.9}
        kinds = [{"prompt": prompt, "ignore_eos": True}, {"prompt": prompt, "ignore_eos": True},
                 {"prompt": prompt, "structured_outputs": {"json": OBJECT}},
                 {"messages": [{"role": "user", "content": prompt}], "tools": [NOTE],
                  "tool_choice": "required"}]
        return common | kinds[i % len(kinds)]
    return [request(i) for i in range(count)]


class Watch:
    """Follows the controller's count of lost workers on a thread and a connection of its own."""

    def __init__(self, server):
        self.lost = []  # when each was counted
        self.over = threading.Event()
        self.server = server
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def __enter__(self):
        self.before = self.server.status()["counters"]["workers_lost"]
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def follow(self):
        with contextlib.closing(UnixConnection(self.server.admin_path)) as connection:
            while not self.over.wait(STATUS_EVERY_S):
                status = json.loads(send(connection, "GET", "/cluster/status").read())
                while self.before + len(self.lost) < status["counters"]["workers_lost"]:
                    self.lost.append(time.monotonic())


class Linked(Server):
    """A controller and workers of ours, each of whom reaches it over a link of its own."""

    def __init__(self, program, model, names):
        self.folder = tempfile.TemporaryDirectory()
        token, port = make_token(program, self.folder.name), free_port()
        super().__init__(program, "serve", model, "--cluster", f"sqlite:{self.folder.name}/state",
                         "--listen", f"127.0.0.1:{port}", "--token", token,
                         "--pipeline-parallel-size", str(len(names)))
        self.links = {name: Link(port) for name in names}
        self.processes = {
            name: Process(program, "worker", model, "--join", f"127.0.0.1:{link.port}", "--token",
                          token, "--name", name, "--threads", "1").process
            for name, link in self.links.items()}

    def workers(self):
        return {name: process.pid for name, process in self.processes.items()
                if process.poll() is None}

    def stop(self):
        try:
            return super().stop()
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait(10)
            for link in self.links.values():
                link.close()
            self.folder.cleanup()


def settle(server, workers):
    """Waits until all workers serve and nothing runs, and returns what is held then."""
    def settled(status):
        serving = [w for w in status["workers"] if w["state"] == "serving"]
        return (len(serving) == len(server.workers()) == workers and
                not any(status[what] for what in ("missing", "requests", "moving", "changing")) and
                not any(pipeline["blocks_used"] for pipeline in status["pipelines"]))

    server.wait_for_status(settled)
    pids = list(server.workers().values())
    return cluster_resources.least(
        lambda: cluster_resources.sample(server.process.pid, pids, server.status()))


@dataclasses.dataclass
class Fault:
    kind: str
    worker: str
    begin: float
    detection_s: float = None  # none: no worker was given up
    gaps_s: list = dataclasses.field(default_factory=list)  # the longest of each stream since then
    differ: int = 0

    def __str__(self):
        terms = ("no worker given up" if self.detection_s is None else
                 f"detection {self.detection_s:.2f} s")
        if self.replay_s is not None:
            terms += f", replay {self.replay_s:.2f} s"
        return (f"{self.kind} of {self.worker}: longest gap {max(self.gaps_s, default=0):.2f} s "
                f"({terms}); {self.differ} streams differ")

    @property
    def replay_s(self):
        """The longest gap without the time until anybody knew."""
        if self.detection_s is None or not self.gaps_s:
            return None
        return max(0, max(self.gaps_s) - self.detection_s)


def starve(pid, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STARVE_OFF_S)
        os.kill(pid, signal.SIGCONT)
        time.sleep(STARVE_ON_S)


def slow_down(link, seconds):
    link.delay_s = SLOW_LINK_DELAY_S
    time.sleep(seconds)
    link.delay_s = 0


def inflict(server, kind, rng):
    """Does it to a worker, and returns when that is over."""
    name, pid = rng.choice(sorted(server.workers().items()))
    fault = Fault(kind, name, time.monotonic())
    what, seconds = (kind, 0) if kind == "kill" else kind.removesuffix(" s").rsplit(" ", 1)
    seconds = float(seconds)
    try:
        if what == "kill":
            os.kill(pid, signal.SIGKILL)
        elif what == "stop":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        elif what == "starve":
            starve(pid, seconds)
        elif what == "cut":
            server.links[name].hold(seconds)
            time.sleep(seconds)
        else:
            slow_down(server.links[name], seconds)
    except ProcessLookupError:
        pass  # it was given up and has ended
    return fault


def report(faults, streams):
    """A table by kind, and all of them together."""
    by_kind = collections.defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault)
        by_kind["all"].append(fault)
    print("| kind | faults | identical streams | gap median | p90 | worst s | detected | detection "
          "median | p90 | worst s | replay median | p90 | worst s |")
    print("|---" * 13 + "|")
    for kind, some in sorted(by_kind.items(), key=lambda entry: entry[0] == "all"):
        identical = sum(streams - f.differ for f in some)
        gaps = [max(f.gaps_s) for f in some if f.gaps_s]
        detections = [f.detection_s for f in some if f.detection_s is not None]
        replays = [f.replay_s for f in some if f.replay_s is not None]
        print(f"| {kind} | {len(some)} | {identical} of {len(some) * streams} | "
              f"{cluster_resources.spread(gaps)} | {len(detections)} | "
              f"{cluster_resources.spread(detections)} | {cluster_resources.spread(replays)} |",
              flush=True)


class Judging(unittest.TestCase):
    """The judgements of a long run can fail."""

    def test_one_descriptor_lost_per_fault_is_found(self):
        steady = [dict.fromkeys(cluster_resources.SLACK, 40) for _ in range(100)]
        self.assertEqual(cluster_resources.grown(steady), [])
        for name in cluster_resources.SLACK:
            leaking = [{**s, name: s[name] + i} for i, s in enumerate(steady)]
            self.assertEqual(len(cluster_resources.grown(leaking)), 1, name)

    def test_a_gap_has_two_terms(self):
        fault = Fault("kill", "w", 0, detection_s=0.5, gaps_s=[0.1, 2.0])
        self.assertAlmostEqual(fault.replay_s, 1.5)
        self.assertIsNone(Fault("stop 0.5 s", "w", 0, gaps_s=[0.6]).replay_s)


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        single = Server(PROGRAM, "serve", options.model)
        single.wait_until_ready()
        cls.asked = requests(options.streams)
        with concurrent.futures.ThreadPoolExecutor(options.streams) as pool:
            cls.expected = [text for text, _ in pool.map(single.stream, cls.asked)]
        for request, text in zip(cls.asked, cls.expected):
            if "structured_outputs" in request or "tools" in request:
                assert '{"words"' in text.replace(" ", ""), text
        single.stop()

    def start(self, *arguments):
        return self.tidy(Server(PROGRAM, "up", options.model, *arguments))

    def tidy(self, server):
        self.addCleanup(server.stop)
        server.wait_until_ready()
        return server

    def check(self, server, disturb, rounds=1):
        """Streams all requests while `disturb` runs; the texts must be the expected ones."""
        gaps = []
        for _ in range(rounds):
            with concurrent.futures.ThreadPoolExecutor(options.streams + 1) as pool:
                streams = [pool.submit(server.stream, request) for request in self.asked]
                disturb(server, lambda: all(s.done() for s in streams))
                for stream, expected in zip(streams, self.expected):
                    text, times = stream.result(ANSWER_LIMIT_S)
                    self.assertEqual(text, expected)
                    gaps.append(max((b - a for a, b in zip(times, times[1:])), default=0))
        return gaps

    def test_two_and_three_stages_answer_like_one_process(self):
        for stages in ("2", "3"):
            server = self.start("--pipeline-parallel-size", stages)
            self.check(server, lambda *_: None)
            self.assertEqual(server.stop(), 0)

    def test_without_layout_options_each_worker_has_a_copy(self):
        server = self.start("--workers", "2")
        self.check(server, lambda *_: None)
        # Pipelines are in the order in which the workers joined.
        self.assertCountEqual([p["workers"] for p in server.status()["pipelines"]],
                              [["worker-0"], ["worker-1"]])
        self.assertIn("each of 2 workers has a copy of the model", server.output)
        for pid in server.workers().values():
            self.assertIn("kv-populate", threads_of(pid), "KV memory is not made ready")
        self.assertEqual(server.stop(), 0)

    def test_tensor_parallel_stages_answer_like_one_process(self):
        server = self.start("--workers", "2", "--tensor-parallel-size", "2")
        self.check(server, lambda *_: None)

    def one_fault(self, server, kind, rng):
        """All streams while it happens. A stream that differs is counted, not yet a failure: the
        run goes on to tell how many."""
        with concurrent.futures.ThreadPoolExecutor(options.streams) as pool, Watch(server) as watch:
            streams = [pool.submit(server.stream, request) for request in self.asked]
            time.sleep(rng.uniform(*PAUSE_S))
            fault = inflict(server, kind, rng)
            for stream, expected in zip(streams, self.expected):
                try:
                    text, times = stream.result(ANSWER_LIMIT_S)
                except (AssertionError, OSError, http.client.HTTPException) as error:
                    print(f"a stream failed: {error}", flush=True)
                    fault.differ += 1
                    continue
                fault.differ += text != expected
                gaps = [b - a for a, b in zip(times, times[1:]) if b > fault.begin]
                if gaps:
                    fault.gaps_s.append(max(gaps))
        if watch.lost:
            fault.detection_s = max(0, watch.lost[0] - fault.begin)
        return fault

    def many_faults(self, server, kinds, count):
        """Every kind as often as it is named, in an order that the seed gives."""
        print(f"\nseed {options.seed}, {count} faults, {options.streams} streams", flush=True)
        rng = random.Random(options.seed)
        kinds = (kinds * (count // len(kinds) + 1))[:count]
        rng.shuffle(kinds)
        faults, held = [], []
        workers = len(server.workers())
        for i, kind in enumerate(kinds):
            fault = self.one_fault(server, kind, rng)
            faults.append(fault)
            now = settle(server, workers)
            held.append(now.counts)
            print(f"fault {i}: {fault}; {now}", flush=True)
        report(faults, options.streams)
        self.assertEqual([f"fault {i}" for i, f in enumerate(faults) if f.differ], [])
        self.assertEqual(cluster_resources.grown(held), [])
        # Otherwise nothing was tried.
        self.assertTrue(any(f.detection_s is not None for f in faults))
        self.assertEqual(server.stop(), 0)

    def test_faults_cost_no_token(self):
        self.many_faults(self.start("--pipeline-parallel-size", "2"), PROCESS_KINDS, options.faults)

    def test_cut_and_slow_links_cost_no_token(self):
        server = self.tidy(Linked(PROGRAM, options.model, ["one", "two"]))
        self.many_faults(server, LINK_KINDS, max(len(LINK_KINDS), options.faults // 4))

    def test_drained_workers_hand_over(self):
        server = self.start("--pipeline-parallel-size", "3")

        def drain(server, over):
            time.sleep(0.2)
            code, body = server.admin("POST", "/cluster/drain", {"worker": "worker-2"})
            self.assertEqual(code, 200, body)

        self.check(server, drain)
        self.check(server, lambda *_: None)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
