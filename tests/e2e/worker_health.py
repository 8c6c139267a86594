#!/usr/bin/env python3
"""The health of a worker process over HTTP: red while its computing thread is stopped, green again
when it goes on; without a controller it is not healthy, but lives.

Usage: worker_health.py PROGRAM MODEL [unittest arguments]
"""
import json
import pathlib
import signal
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster  # noqa: E402
from harness.http import Api  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

from stopped_thread import Stopped, thread_named  # noqa: E402

PROGRAM, MODEL = take_paths(2)
LIMIT_S = 60


class Health(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    def setUp(self):
        super().setUp()
        self.health = Api(free_port())
        self.serve()
        self.worker = self.join("a", "--health-listen", f"127.0.0.1:{self.health.port}", "--health-stuck-after", "2")
        self.server.wait_until_ready()

    def ask(self, path):
        status, text = self.health.get(path)
        return status, json.loads(text)

    def wait_for_answer(self, path, status):
        return wait_for(lambda: (answer := self.ask(path))[0] == status and answer,
                 lambda: self.ask(path), LIMIT_S)[1]

    def test_a_stopped_computing_thread(self):
        self.assertEqual(self.ask("/health")[0], 200)
        self.assertEqual(self.ask("/live")[0], 200)
        answers = []
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}
        thread = threading.Thread(
            target=lambda: answers.append(self.server.post("/v1/completions", body)[0]))
        with Stopped(thread_named(self.worker.process.pid, "compute")):
            thread.start()
            answer = self.wait_for_answer("/live", 503)
            self.assertEqual(answer["status"], "stuck")
            self.assertRegex(answer["error"]["message"],
                             r"^The computing thread has not (ended|taken up) .* for [\d.]+ s\.$")
            self.assertEqual(self.ask("/health")[0], 503)
        self.wait_for_answer("/health", 200)
        thread.join()
        self.assertEqual(answers, [200], "it is answered all the same")
        self.assertEqual(self.ask("/nothing")[0], 404)

    def test_without_a_controller(self):
        self.server.send_signal(signal.SIGKILL)
        answer = self.wait_for_answer("/health", 503)
        self.assertEqual(answer["status"], "disconnected")
        self.assertEqual(self.ask("/live")[0], 200)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
