#!/usr/bin/env python3
"""A cluster under a plan, as processes, while it streams: a replica gets SIGTERM, a plan cannot be
loaded. The cluster stays ready, every stream is byte for byte what one process answers, the worker
ends, and /metrics counts what /cluster/status counts.

Usage: cluster_plans.py PROGRAM MODEL [unittest arguments]
"""
import concurrent.futures
import pathlib
import re
import shutil
import signal
import sys
import unittest
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import REPLICAS, JoinedCluster, answers_of_one_process  # noqa: E402
from harness.processes import run  # noqa: E402

PROGRAM, MODEL = take_paths(2)
STREAMS = 6
TOKENS = 200
LIMIT_S = 60
PIPELINE = """format: 1
model: demo
layers: 4
stages:
  - {stage: 0, nodes: [a], layers: [0, 2]}
  - {stage: 1, nodes: [b], layers: [2, 4]}
"""
OTHER_CUT = PIPELINE.replace("[0, 2]", "[0, 3]").replace("[2, 4]", "[3, 4]")
SHIFTED = PIPELINE.replace("[0, 2]", "[0, 1]").replace("[2, 4]", "[1, 4]")
# The word in /cluster/status, the name in /metrics.
COUNTERS = {"joins": "worker_joins", "workers_lost": "workers_lost", "replays": "replays",
            "fetched": "replays_with_kv", "moves": "moves", "moves_failed": "moves_failed",
            "moved_bytes": "moved_bytes", "pulls_failed": "pulls_failed",
            "plans_applied": "plans_applied", "plans_given_up": "plans_given_up"}


def requests():
    return [{"prompt": f"Once upon a time number {i} there was", "max_tokens": TOKENS, "seed": i,
             "temperature": 0 if i % 2 == 0 else 0.9, "ignore_eos": True} for i in range(STREAMS)]


class Plans(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        cls.expected = answers_of_one_process(PROGRAM, MODEL, requests())

    def plan_file(self, text):
        path = self.folder / "plan.yaml"
        path.write_text(text)
        return str(path)

    def serve_plan(self, plan):
        self.serve("--plan", self.plan_file(plan))

    def metrics(self):
        status, text = self.server.get("/metrics")
        self.assertEqual(status, 200)
        return {name: (re.search(rf"(?m)^# TYPE {name} (\w+)$", text).group(1), float(value))
                for name, value in re.findall(r"(?m)^(millrace_cluster_\w+)\{[^}]*\} (\S+)$", text)}

    def check_metrics(self):
        """Nothing runs, so that both say the same."""
        counters = self.wait_for(lambda s: not s["requests"] and not s["moving"])["counters"]
        metrics = self.metrics()
        self.assertEqual(len(metrics), len(counters), "each counter is in both")
        for word, name in COUNTERS.items():
            kind, value = metrics[f"millrace_cluster_{name}_total"]
            self.assertEqual((kind, value), ("counter", counters[word]), name)
        return counters

    def stream_all(self, pool):
        running = [pool.submit(self.server.stream, request) for request in requests()]
        self.wait_for(lambda s: sum(pipeline["requests"] for pipeline in s["pipelines"]) == STREAMS)
        return running

    def check_streams(self, running):
        for one, expected in zip(running, self.expected):
            self.assertEqual(one.result(LIMIT_S)[0], expected)

    def test_a_replica_leaves_and_its_requests_stay(self):
        self.serve_plan(REPLICAS)
        self.assertEqual(self.server.get("/ready")[0], 503)
        self.join("a")
        self.server.wait_until_ready()
        self.assertEqual(self.server.status()["degraded"],
                         "A stage with the model's layers has no worker.")
        second = self.join("b")
        self.wait_for(lambda s: not s["degraded"])
        before = self.metrics()
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            running = self.stream_all(pool)
            self.wait_for(lambda s: any(pipeline["workers"] == ["b"] and pipeline["requests"]
                                        for pipeline in s["pipelines"]))
            second.send_signal(signal.SIGTERM)
            self.assertEqual(second.process.wait(LIMIT_S), 0)
            self.assertEqual(self.server.get("/ready")[0], 200)
            self.assertFalse(all(one.done() for one in running), "too late to matter")
            self.check_streams(running)
        counters = self.check_metrics()
        self.assertEqual((counters["replays"], counters["pipelines_lost"]), (0, 0))
        self.assertEqual((counters["workers_left"], counters["workers_lost"]), (1, 0))
        for name, (_, value) in self.metrics().items():
            self.assertGreaterEqual(value, before[name][1], name)

    def apply(self, plan):
        return run(PROGRAM, "plan", "apply", self.plan_file(plan), "--base-url", self.url, status=None,
                   limit_s=LIMIT_S)

    def weights(self):
        """The bytes of each worker, and what was kept and read since the controller's start."""
        status = self.wait_for(lambda s: not s["changing"])
        held = {w["name"]: w["weight_bytes"] for w in status["workers"]}
        return held, status["counters"]["weights_kept"], status["counters"]["weights_from_disk"]

    def test_a_change_of_plan_reads_only_the_layers_that_are_missing(self):
        self.serve_plan(PIPELINE)
        first = self.join("a")
        self.server.wait_for("worker a joined")
        self.join("b")
        self.server.wait_until_ready()
        held, kept, read = self.weights()
        self.assertEqual((kept, read), (0, sum(held.values())))
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            running = self.stream_all(pool)
            self.assertEqual(self.apply(OTHER_CUT).returncode, 0)
            now, kept, read = self.weights()
            layer = now["a"] - held["a"]
            self.assertGreater(layer, 0)
            self.assertEqual((kept, read), (held["a"] + now["b"], sum(held.values()) + layer))
            self.assertEqual(self.apply(SHIFTED).returncode, 0)
            last, all_kept, all_read = self.weights()
            self.assertEqual(last["b"], now["b"] + 2 * layer)
            self.assertEqual((all_kept - kept, all_read - read),
                             (last["a"] + now["b"], 2 * layer))
            self.check_streams(running)
        counters = self.check_metrics()
        self.assertEqual((counters["pipelines_lost"], counters["weights_from_peers"]), (0, 0))
        self.assertTrue(first.said(r"layers 0-2 are loaded \(.*: .* kept, 0 B from other workers, "))

    def test_a_plan_that_cannot_be_loaded_is_given_up(self):
        self.serve_plan(PIPELINE)
        self.join("a")
        self.server.wait_for("worker a joined")  # else the second could take the first's layers
        copy = self.folder / "copy" / "demo"
        shutil.copytree(MODEL, copy)
        self.join("b", model=str(copy))
        self.server.wait_until_ready()
        weights = list(copy.glob("*.safetensors"))
        self.assertTrue(weights)
        for path in weights:
            path.unlink()
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            running = self.stream_all(pool)
            done = self.apply(OTHER_CUT)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertRegex(done.stderr, "plan 1 stays in force: worker b cannot load layers 3-3: ")
            self.assertEqual(self.server.get("/ready")[0], 200)
            self.check_streams(running)
        counters = self.check_metrics()
        self.assertEqual((counters["plans_given_up"], counters["pipelines_lost"]), (1, 0))
        status = self.server.status()
        self.assertEqual(status["given_up"]["plan"], 2)
        self.assertEqual([w["state"] for w in status["workers"]], ["serving", "serving"])
        self.assertIn("plan 2 was given up: worker b cannot load layers 3-3: ",
                      self.run_ok("status", "--base-url", self.url))
        self.assertTrue(self.server.said("gave up plan 2; plan 1 stays in force"))
        # The next controller begins with the plan that was in force.
        self.assertEqual(self.server.stop(), 0)
        self.serve_plan(PIPELINE)
        self.assertEqual(self.server.said("starting with the plan that was applied last"), [])


if __name__ == "__main__":
    unittest.main()
