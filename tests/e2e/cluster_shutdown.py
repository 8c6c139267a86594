#!/usr/bin/env python3
"""A cluster that is stopped as a whole: the controller and its workers get signals in every order,
or the controller is killed, while requests run and while none does. Every process ends.

Usage: cluster_shutdown.py PROGRAM MODEL [unittest arguments]
"""
import itertools
import pathlib
import signal
import sys
import threading
import time
import unittest
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster  # noqa: E402

PROGRAM, MODEL = take_paths(2)
END_LIMIT_S = 40  # more than --shutdown-timeout, 5 s here


class Shutdown(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    def setUp(self):
        super().setUp()
        self.serve("--pipeline-parallel-size", "2", "--shutdown-timeout", "5")
        flags = ("--notice-source", "none", "--no-measure-profile", "--kv-cache-memory", "32MiB")
        self.processes = [self.server, *(self.join(name, *flags) for name in "ab")]
        self.server.wait_until_ready()

    def generate(self):
        """A request that would run for long."""
        def run():
            try:
                self.server.stream({"prompt": "Once", "max_tokens": 900, "ignore_eos": True})
            except Exception:  # the stream is cut when everything ends
                pass
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.wait_for(lambda s: any(p["requests"] for p in s["pipelines"]))

    def send(self, number, *processes):
        for process in processes:
            process.send_signal(number)

    def expect_all_end(self):
        end = time.monotonic() + END_LIMIT_S
        for process in self.processes:
            try:
                process.process.wait(max(0.1, end - time.monotonic()))
            except Exception:
                self.fail(f"{process.process.args[1]} runs on:\n" + "".join(process.lines[-20:]))

    def test_all_at_once(self):
        self.send(signal.SIGTERM, *self.processes)
        self.expect_all_end()
        self.assertEqual([p.process.returncode for p in self.processes], [0, 0, 0])

    def test_all_at_once_while_a_request_runs(self):
        self.generate()
        self.send(signal.SIGINT, *self.processes)
        self.expect_all_end()

    def test_the_controller_is_killed_while_a_worker_hands_over(self):
        self.generate()
        self.send(signal.SIGTERM, *self.processes[1:])
        self.processes[0].kill()
        self.expect_all_end()

    def test_the_controller_is_killed_first(self):
        self.processes[0].kill()
        for worker in self.processes[1:]:
            worker.wait_for("joining again|cannot join")
        self.send(signal.SIGTERM, *self.processes[1:])
        self.expect_all_end()

    def test_a_second_signal(self):
        self.generate()
        for _ in range(2):
            self.send(signal.SIGTERM, *self.processes)
            time.sleep(0.2)
        self.expect_all_end()


def in_order(order):
    def test(self):
        for index in order:
            self.send(signal.SIGTERM, self.processes[index])
            time.sleep(0.05)
        self.expect_all_end()
    return test


for order in itertools.permutations(range(3)):
    if order[1] < order[2] or order[0] == 0:  # the workers are alike
        setattr(Shutdown, "test_in_the_order_" + "_".join(map(str, order)), in_order(order))

if __name__ == "__main__":
    unittest.main()
