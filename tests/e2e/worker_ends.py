#!/usr/bin/env python3
"""SIGTERM ends a worker within its grace in every state: its controller is stopped or drains, a
thread of its own stands still, it has no controller. `millrace up` ends all its workers, however it
ends itself.

Usage: worker_ends.py PROGRAM MODEL [unittest arguments]
"""
import os
import pathlib
import signal
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster  # noqa: E402
from harness.proc import children, running  # noqa: E402
from harness.processes import Server  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

from stopped_thread import Stopped, thread_named  # noqa: E402

PROGRAM, MODEL = take_paths(2)
GRACE_S = 4
END_LIMIT_S = 20


class Ends(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    def begin(self, *words):
        self.serve("--shutdown-timeout", "60", *words)
        self.worker = self.join("a", "--grace", f"{GRACE_S}s", "--kv-cache-memory", "32MiB")
        self.server.wait_until_ready()

    def generate(self):
        """A request that runs for long."""
        def run():
            try:
                self.server.stream({"prompt": "Once", "max_tokens": 900, "ignore_eos": True,
                                    "n": 4})
            except Exception:  # it is cut when everything ends
                pass
        threading.Thread(target=run, daemon=True).start()
        self.wait_for(lambda s: any(p["requests"] for p in s["pipelines"]))

    def expect_end_within_grace(self):
        begun = time.monotonic()
        self.worker.send_signal(signal.SIGTERM)
        self.assertEqual(self.worker.process.wait(END_LIMIT_S), 0, "".join(self.worker.lines[-9:]))
        self.assertLess(time.monotonic() - begun, GRACE_S, "".join(self.worker.lines[-9:]))

    def test_its_controller_is_stopped(self):
        self.begin()
        self.server.send_signal(signal.SIGSTOP)
        self.addCleanup(self.server.send_signal, signal.SIGCONT)
        self.expect_end_within_grace()

    def test_its_controller_drains(self):
        self.begin()
        self.generate()
        self.server.send_signal(signal.SIGTERM)
        self.server.wait_for("finishing running requests")
        self.expect_end_within_grace()

    def test_its_computing_thread_stands_still(self):
        self.begin()
        begun = time.monotonic()
        with Stopped(thread_named(self.worker.process.pid, "compute")):
            self.worker.send_signal(signal.SIGTERM)
            self.worker.wait_for("ending without waiting for")
            self.assertLess(time.monotonic() - begun, GRACE_S)
        self.assertEqual(self.worker.process.wait(END_LIMIT_S), 0)  # its last thread is let go

    def test_its_controller_is_gone(self):
        self.begin()
        self.server.kill()
        self.worker.wait_for("joining again|cannot join")
        self.expect_end_within_grace()

    def test_a_controller_that_accepts_nobody(self):
        """It answers no call, so the worker is in the middle of a join."""
        self.begin()
        self.server.send_signal(signal.SIGSTOP)
        self.addCleanup(self.server.send_signal, signal.SIGCONT)
        late = self.worker = self.join("b", "--grace", f"{GRACE_S}s")
        late.wait_for("joining")
        time.sleep(1)
        self.expect_end_within_grace()


class UpEnds(unittest.TestCase):
    def setUp(self):
        self.up = Server(PROGRAM, "up", MODEL, "--workers", "2", "--shutdown-timeout", "1")
        self.addCleanup(self.up.stop)
        self.up.wait_until_ready()
        self.workers = [child.pid for child in children(self.up.process.pid)]
        self.assertEqual(len(self.workers), 2)

    def expect_no_worker(self):
        wait_for(lambda: not {process.pid for process in running()} & set(self.workers),
                 "no worker runs", END_LIMIT_S, 0.02)

    def test_when_it_is_stopped(self):
        os.kill(self.workers[0], signal.SIGSTOP)
        self.up.send_signal(signal.SIGTERM)
        self.assertEqual(self.up.process.wait(END_LIMIT_S), 0)
        self.expect_no_worker()

    def test_when_it_is_killed(self):
        os.kill(self.workers[0], signal.SIGSTOP)
        self.up.kill()
        self.expect_no_worker()

    def test_at_a_second_signal(self):
        for _ in range(2):
            self.up.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        self.up.process.wait(END_LIMIT_S)
        self.expect_no_worker()


if __name__ == "__main__":
    unittest.main()
