#!/usr/bin/env python3
"""Workers whose computing thread is stopped while their heartbeats go on: each is lost like a dead
one and no other, its requests are answered elsewhere as by one process, the controller's /health
stays 200 and says which process to restart, and the worker joins again when its thread moves.

Usage: still_worker.py PROGRAM MODEL [unittest arguments]
"""
import concurrent.futures
import contextlib
import json
import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster, answers_of_one_process  # noqa: E402

from stopped_thread import Stopped, thread_named  # noqa: E402

PROGRAM, MODEL = take_paths(2)
NOTICED_WITHIN_S = 30  # 10 s on a machine that is not busy
REQUEST = {"prompt": "Once upon a time there was", "max_tokens": 200, "temperature": 0,
           "ignore_eos": True}


class Still(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        cls.expected = answers_of_one_process(PROGRAM, MODEL, [REQUEST])[0]

    def begin(self, workers, *words):
        self.serve(*words)
        self.workers = {name: self.join(name) for name in workers}
        self.server.wait_until_ready()
        self.wait_for(lambda s: len(s["workers"]) == len(workers))

    def stop_thread_of(self, name):
        return Stopped(thread_named(self.workers[name].process.pid, "compute"))

    def serving(self):
        return [w["name"] for w in self.server.status()["workers"] if w["layers"]]

    def wait_until_lost(self, name):
        begun = time.monotonic()
        status = self.wait_for(lambda s: s["still"])
        self.assertEqual([worker["name"] for worker in status["still"]], [name])
        self.assertEqual(status["counters"]["workers_lost"], 1, "nobody else")
        self.assertLess(time.monotonic() - begun, NOTICED_WITHIN_S)

    def check_health(self, name):
        code, text = self.server.get("/health")
        self.assertEqual(code, 200, text)
        worker = json.loads(text)["restart_workers"][0]
        self.assertEqual(worker["name"], name)
        self.assertIn("not this controller", worker["message"])

    @contextlib.contextmanager
    def answered_while_still(self, name):
        with concurrent.futures.ThreadPoolExecutor(1) as pool, self.stop_thread_of(name):
            answer = pool.submit(lambda: self.server.stream(REQUEST)[0])
            self.wait_until_lost(name)
            yield answer
            self.check_health(name)

    def check_back(self, count):
        self.wait_for(lambda s: len(s["workers"]) == count and not s["still"])
        self.assertEqual(json.loads(self.server.get("/health")[1]), {"status": "ok"})

    def test_the_spare_answers_the_first_request(self):
        self.begin("ab")
        name = self.serving()[0]
        with self.answered_while_still(name) as answer:
            self.assertEqual(answer.result(), self.expected)
        self.check_back(2)

    def test_the_stage_that_stands_still_is_lost_and_not_its_neighbour(self):
        self.begin("abc", "--pipeline-parallel-size", "2")
        self.server.stream(REQUEST)
        name = next(w["name"] for w in self.server.status()["workers"] if [0, 2] not in w["layers"]
                    and w["layers"])
        with self.answered_while_still(name) as answer:
            self.assertEqual(answer.result(), self.expected)
        self.check_back(3)

    def test_the_rank_that_stands_still_is_lost_and_not_its_peer(self):
        self.begin("abc", "--tensor-parallel-size", "2")
        self.server.stream(REQUEST)
        name = next(w["name"] for w in self.server.status()["workers"]
                    if w["layers"] and w["rank"] == 1)
        with self.answered_while_still(name) as answer:
            self.assertEqual(answer.result(), self.expected)
        self.check_back(3)

    def test_without_a_spare_requests_wait_for_it(self):
        self.begin("a")
        with self.answered_while_still("a") as answer:
            self.assertFalse(answer.done())
            self.assertEqual(self.server.status()["workers"], [], "it does not join meanwhile")
            self.workers["a"].wait_for("restart this process")
        self.assertEqual(answer.result(), self.expected)
        self.check_back(1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
