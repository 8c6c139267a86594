#!/usr/bin/env python3
"""The health of a worker process over HTTP: red while its computing thread is stopped, green again
when it goes on; without a controller it is not healthy, but lives.

Usage: worker_health.py PROGRAM MODEL [unittest arguments]
"""
import contextlib
import http.client
import json
import pathlib
import signal
import sys
import threading
import time
import unittest

from cluster_processes import free_port
from joined_cluster import JoinedCluster
from stopped_thread import Stopped, thread_named

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
MODEL = str(pathlib.Path(sys.argv.pop(1)).resolve())
LIMIT_S = 60


class Health(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    def setUp(self):
        super().setUp()
        self.address = f"127.0.0.1:{free_port()}"
        self.serve()
        self.worker = self.join("a", "--health-listen", self.address, "--health-stuck-after", "2")
        self.server.wait_until_ready()

    def ask(self, path):
        connection = http.client.HTTPConnection(self.address, timeout=LIMIT_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())

    def wait_for_answer(self, path, status):
        end = time.monotonic() + LIMIT_S
        while (answer := self.ask(path))[0] != status:
            self.assertLess(time.monotonic(), end, answer)
            time.sleep(0.05)
        return answer[1]

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
        self.server.process.send_signal(signal.SIGKILL)
        answer = self.wait_for_answer("/health", 503)
        self.assertEqual(answer["status"], "disconnected")
        self.assertEqual(self.ask("/live")[0], 200)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
