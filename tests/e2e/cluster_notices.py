#!/usr/bin/env python3
"""Workers whose machines are taken away with notice, as processes, while they stream: notices of
AWS, Google Cloud and Azure from a metadata server on loopback, of a file and of a command; notices
that are withdrawn; metadata servers that misbehave. Every stream must be byte for byte what one
process answers.

Usage: cluster_notices.py PROGRAM MODEL [unittest arguments]
"""
import contextlib
import itertools
import json
import pathlib
import re
import signal
import sys
import threading
import time
import unittest
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import REPLICAS, JoinedCluster, answers_of_one_process  # noqa: E402

from fake_metadata import FakeMetadata, rfc3339  # noqa: E402

PROGRAM, MODEL = take_paths(2)
STREAMS = 4
TOKENS = 900
LIMIT_S = 60


def requests():
    return [{"prompt": f"Once upon a time number {i} there was", "max_tokens": TOKENS, "seed": i,
             "temperature": 0 if i % 2 == 0 else 0.9, "ignore_eos": True} for i in range(STREAMS)]


class Streaming:
    """Streams the requests again and again, and compares."""

    def __init__(self, server, expected):
        self.server, self.expected = server, expected
        self.over = threading.Event()
        self.streamed, self.wrong = 0, []
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(STREAMS)]

    def run(self, first):
        for i in itertools.count(first):
            if self.over.is_set():
                return
            try:
                text, _ = self.server.stream(requests()[i % STREAMS])
                if text != self.expected[i % STREAMS]:
                    self.wrong.append(text)
            except Exception as error:
                self.wrong.append(repr(error))
            self.streamed += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


class Notices(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        cls.expected = answers_of_one_process(PROGRAM, MODEL, requests())

    def setUp(self):
        super().setUp()
        plan = self.folder / "plan.yaml"
        plan.write_text(REPLICAS)
        self.serve("--plan", plan)
        self.fake = FakeMetadata()
        self.addCleanup(self.fake.close)
        self.first = self.worker("a", "none")
        self.server.wait_until_ready()

    def worker(self, name, source, *more):
        if source in ("aws", "gcp", "azure"):
            more = (*more, "--notice-endpoint", self.fake.url)
        return self.join(name, "--notice-source", source, *more)

    def of(self, name):
        """A worker as the controller sees it; empty: it has not joined."""
        return next((w for w in self.server.status()["workers"] if w["name"] == name), {})

    def until(self, name, wanted):
        status = self.wait_for(
            lambda s: any(w["name"] == name and wanted(w) for w in s["workers"]))
        return next(w for w in status["workers"] if w["name"] == name)

    @contextlib.contextmanager
    def streaming(self):
        with Streaming(self.server, self.expected) as streaming:
            self.wait_for(lambda s: any(pipeline["workers"] == ["b"] and pipeline["requests"]
                                        for pipeline in s["pipelines"]))
            yield
        self.assertEqual(streaming.wrong, [])
        self.assertGreaterEqual(streaming.streamed, STREAMS)
        counters = self.server.status()["counters"]
        self.assertEqual((counters["replays"], counters["pipelines_lost"]), (0, 0))

    def notices(self):
        return {(labels["source"], labels["kind"]): value
                for labels, value in self.server.metrics().family("millrace_notices_total")}

    def start_second(self, source, *more):
        worker = self.worker("b", source, *more)
        self.until("b", lambda w: w["state"] == "serving")
        return worker

    def heard(self, source, kind):
        """What the controller has said of the notice: in how many seconds the worker leaves. It may
        be gone a few milliseconds later."""
        line = self.server.wait_for(rf"worker b leaves.*\({source}: {kind}\)")
        found = re.search(r"leaves in (\d+) s", line)
        return int(found.group(1)) if found else None

    def takes_away(self, source, kind, give, at_most_s):
        """Notice is given while it serves: its requests move, and it waits for its end."""
        worker = self.start_second(source)
        with self.streaming():
            given = time.monotonic()
            give()
            left_s = self.heard(source, kind)
            self.assertLess(time.monotonic() - given, at_most_s + 1)  # and 1 s for a busy machine
            worker.wait_for("everything is handed over")
            self.wait_for(lambda s: len(s["workers"]) == 1)
        self.assertEqual(self.notices(), {(source, kind): 1})
        # So that nobody starts it again on that machine.
        self.assertIsNone(worker.process.poll())
        return worker, left_s

    def test_aws(self):
        def give():
            self.fake.action = json.dumps({"action": "terminate", "time": rfc3339(120)})

        worker, left_s = self.takes_away("aws", "terminate", give, 5.5)
        self.assertIn(left_s, range(100, 120))
        self.assertEqual(worker.stop(), 0, worker.output)

    def test_gcp(self):
        def give():
            self.fake.preempted = "TRUE"

        _, left_s = self.takes_away("gcp", "preempt", give, 1)
        self.assertIn(left_s, range(25, 30))

    def test_azure_is_acknowledged_when_all_is_handed_over(self):
        def give():
            self.fake.add_event("E0", "Preempt", 30, ["vm-7"])  # another machine's
            time.sleep(2.5)
            self.assertIsNone(self.of("b")["notice"])
            self.fake.add_event("E1", "Terminate", 300)

        worker, _ = self.takes_away("azure", "terminate", give, 1.5 + 2.5)
        self.assertEqual(worker.process.wait(LIMIT_S), 0, "it ends although it is still there")
        self.assertEqual(self.fake.started, ["E1"])

    def test_a_notice_withdrawn_too_late(self):
        """The worker has left already. The event takes others too, so it is not acknowledged."""
        worker = self.start_second("azure")
        with self.streaming():
            self.fake.add_event("E1", "Preempt", 30, ["vm-1", "vm-2"])
            worker.wait_for("everything is handed over")
            self.wait_for(lambda s: len(s["workers"]) == 1)
            self.fake.events = []
            worker.wait_for("joining again")
            self.until("b", lambda w: w["state"] == "serving" and not w["notice"])
            joined = len(worker.said("everything is handed over"))
            self.assertEqual(joined, 1)
        self.assertEqual(self.fake.started, [])
        self.assertEqual(worker.stop(), 0)

    def test_a_notice_withdrawn_in_time(self):
        """The worker that takes its requests over is stopped for less than it takes to lose it."""
        path = self.folder / "notice"
        worker = self.start_second(f"file:{path}")
        with self.streaming():
            joins = self.server.status()["counters"]["joins"]
            self.first.process.send_signal(signal.SIGSTOP)
            try:
                path.write_text("45s\n")
                seen = self.until("b", lambda w: w["notice"])
                self.assertEqual((seen["state"], seen["notice"]["source"]), ("draining", "file"))
                self.assertTrue(40 < seen["notice"]["in_s"] < 45)
                path.unlink()
                self.until("b", lambda w: not w["notice"] and w["state"] == "serving")
            finally:
                self.first.process.send_signal(signal.SIGCONT)
            worker.wait_for("withdrawn: this worker stays")
            self.wait_for(lambda s: any(p["workers"] == ["b"] and p["state"] == "open" and
                                        p["requests"] for p in s["pipelines"]))
            self.assertEqual(self.server.status()["counters"]["joins"], joins,
                             self.server.output)

    def test_a_soft_notice_moves_nothing(self):
        self.start_second("aws")
        with self.streaming():
            self.fake.rebalance = json.dumps({"noticeTime": rfc3339(0)})
            seen = self.until("b", lambda w: w["notice"])
            self.assertFalse(seen["notice"]["leaves"])
            self.assertEqual(seen["state"], "serving")
            self.assertIn("b: may leave (aws: rebalance)",
                          self.run_ok("status", "--base-url", self.url))
            time.sleep(1)
            self.assertEqual(self.of("b")["state"], "serving")
        self.assertEqual(self.server.status()["counters"]["moves"], 0)

    def test_a_command(self):
        go = self.folder / "go"
        command = (f"while [ ! -e {go} ]; do sleep 0.1; done; "
                   """echo '{"kind":"maintenance","in_s":3}'; sleep 60""")
        worker = self.start_second(f"exec:{command}")
        with self.streaming():
            go.touch()
            self.assertEqual(self.heard("exec", "maintenance"), 2)
            self.assertEqual(worker.process.wait(LIMIT_S), 0)  # its time is over

    def test_sigterm_has_a_deadline(self):
        worker = self.start_second("kubernetes", "--grace", "25s")
        with self.streaming():
            worker.process.send_signal(signal.SIGTERM)
            worker.wait_for("kubernetes: terminate, this machine goes away in 24 s")
            self.assertEqual(worker.process.wait(LIMIT_S), 0)

    def test_servers_that_misbehave(self):
        """The worker serves on, says what is wrong once, and hears the notice that comes later."""
        worker = self.start_second("aws")
        with self.streaming():
            for trouble in ("reset", "malformed", "huge", 503, "hang"):
                self.fake.trouble = trouble
                asked = self.fake.asked
                end = time.monotonic() + LIMIT_S
                while self.fake.asked < asked + 3 and time.monotonic() < end:
                    time.sleep(0.05)
                self.assertIsNone(self.of("b")["notice"])
            complaints = worker.said("notices from aws")
            self.assertEqual(len(complaints), len(set(c.split("warn", 1)[-1] for c in complaints)))
            self.assertGreaterEqual(len(complaints), 4)
            self.fake.tokens.clear()  # it has forgotten them
            self.fake.trouble = None
            self.fake.action = json.dumps({"action": "terminate", "time": rfc3339(60)})
            self.heard("aws", "terminate")
            worker.wait_for("everything is handed over")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
