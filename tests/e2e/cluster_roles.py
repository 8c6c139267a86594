#!/usr/bin/env python3
"""Prefill and decode apart, and replicas, from the options of `up` and `serve --cluster`, as
processes: the commands of docs/cluster.md, and streams while workers are killed, hang, stay away
and return. Every stream is byte for byte what one process answers. What /metrics and the status say
of the flow between the workers is what the requests had.

Usage: cluster_roles.py PROGRAM SOURCE_DIR [unittest arguments]
"""
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import prometheus  # noqa: E402
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster, answers_of_one_process  # noqa: E402
from harness.processes import Process  # noqa: E402

PROGRAM, SOURCE = take_paths(2)
MODEL = f"{SOURCE}/models/demo"
SECTION = "## Prefill and decode apart"
STREAMS = 6
TOKENS = 120
LIMIT_S = 90
APART = {"prefill": 1, "decode": 1}


def request(number):
    """A worker that decodes does not compute so long a prompt while another one does."""
    return {"prompt": f"{number} times upon a time there was a harbour. " * 12,
            "max_tokens": TOKENS, "seed": number, "temperature": 0 if number % 2 == 0 else 0.9,
            "ignore_eos": True}


def requests():
    return [request(i) for i in range(STREAMS)]


def documented_commands():
    page = pathlib.Path(SOURCE, "docs", "cluster.md").read_text()
    section = page[page.index(SECTION):]
    section = section[:section.index("\n## ", 1)]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


class Roles(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        cls.expected = answers_of_one_process(PROGRAM, MODEL, requests(), "--threads", "1")

    def wait_for(self, wanted):
        return super().wait_for(wanted, LIMIT_S)

    def wait_for_roles(self, roles):
        """The open pipelines by role, and nothing else."""
        def shown(status):
            pipelines = status["pipelines"]
            return (collections.Counter(p["role"] for p in pipelines) == roles and
                    all(p["state"] == "open" for p in pipelines) and not status["missing"])
        return self.wait_for(shown)

    def worker_of(self, role):
        """The name of the worker in the only pipeline of that role."""
        pipelines = [p for p in self.server.status()["pipelines"] if p["role"] == role]
        self.assertEqual([len(p["workers"]) for p in pipelines], [1])
        return pipelines[0]["workers"][0]

    def stream_while(self, act):
        """Streams all requests, acts when they run, and compares what they got."""
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            running = [pool.submit(self.server.stream, asked) for asked in requests()]
            self.wait_for(lambda s: s["requests"] == STREAMS)
            act()
            for one, expected in zip(running, self.expected):
                self.assertEqual(one.result(LIMIT_S)[0], expected)

    def test_the_page(self):
        begin, *others = documented_commands()
        program, *words = begin.split()
        self.assertEqual((program, words[:2]), ("millrace", ["up", "models/demo"]))
        self.start("up", MODEL, *words[2:], "--threads", "1")
        self.server.wait_until_ready()
        self.wait_for_roles(APART)
        self.assertEqual(len(others), 2)
        for command in others:
            command = command.replace("127.0.0.1:8000", f"127.0.0.1:{self.server.port}")
            command = command.replace("millrace status",
                                      f"{PROGRAM} status --base-url {self.url}")
            done = subprocess.run(command, shell=True, capture_output=True, text=True,
                                  timeout=LIMIT_S, check=True)
            self.assertRegex(done.stdout, '"choices"|\nPREFILL\n')

    def check_phases(self):
        """A request that is handed over spends time on the way, and says so."""
        asked = {**request(STREAMS), "return_metrics": True}
        metrics = self.server.json("/v1/completions", asked)["metrics"]
        for phase in ("prefill_s", "transfer_s", "decode_s"):
            self.assertGreater(metrics[phase], 0, metrics)
        total = sum(metrics[f"{phase}_s"]
                    for phase in ("queue", "prefill", "hold", "transfer", "decode"))
        self.assertLessEqual(total, metrics["e2e_s"])
        for name in ("hold", "transfer"):
            name = f"millrace_request_{name}_time_seconds_sum"
            self.assertGreater(self.server.metric(name), 0, name)

    def metrics(self):
        return prometheus.parse(self.server.get("/metrics")[1])

    @contextlib.contextmanager
    def watched(self, lines):
        """`millrace status --watch` meanwhile."""
        watch = Process(PROGRAM, "status", "--watch", "--base-url", self.url)
        try:
            watch.wait_for("^STAGE ")
            yield
        finally:
            watch.stop()
            lines += watch.lines

    def check_flow(self):
        """What flows along the edges is what the requests had, in /metrics and in the status."""
        before = self.metrics()
        lines, usage = [], collections.Counter()
        asked = [request(2 * STREAMS + i) for i in range(STREAMS)]
        with self.watched(lines), concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            for _, text in pool.map(lambda a: self.server.post("/v1/completions", a), asked):
                usage.update({key: value for key, value in json.loads(text)["usage"].items()
                              if isinstance(value, int)})
            time.sleep(2)  # the watch looks once a second
        after = self.metrics()

        def grown(name, **labels):
            return after.sum(name, **labels) - before.sum(name, **labels)

        prompt, answer = usage["prompt_tokens"], usage["completion_tokens"]
        tokens = "millrace_edge_tokens_total"
        self.assertEqual(grown(tokens, phase="prefill", **{"from": "coordinator"}), prompt)
        self.assertEqual(grown(tokens, phase="hand-over"), prompt)
        # Prefill computes the first token of each answer.
        self.assertEqual(grown(tokens, phase="decode", **{"from": "coordinator"}),
                         answer - STREAMS)
        for phase in ("prefill", "decode"):
            for end in ({"from": "coordinator"}, {"to": "coordinator"}):
                self.assertEqual(grown("millrace_edge_requests_total", phase=phase, **end),
                                 STREAMS)
        self.assertEqual(grown("millrace_cluster_hand_overs_total"), STREAMS)
        self.assertEqual(grown("millrace_cluster_hand_overs_failed_total"), 0)
        self.assertGreater(grown("millrace_hand_over_bytes_total"), 0)
        self.assertEqual(grown("millrace_hand_over_bytes_total"),
                         grown("millrace_cluster_moved_bytes_total"))
        self.assertGreater(grown("millrace_hand_over_seconds_total"), 0)
        self.assertEqual(sorted(labels["role"] for labels, blocks
                                in after.family("millrace_stage_kv_blocks") if blocks > 0),
                         ["decode", "prefill"])
        self.assertEqual(after.sum("millrace_stage_requests_running"), 0)
        self.assertEqual({labels["phase"]: value for labels, value
                          in after.family("millrace_requests_waiting")},
                         {"prefill": 0, "decode": 0, "transfer": 0})
        self.check_status(after)
        said = "".join(lines)
        self.assertRegex(said, r"\nDECODE\n\S+ +\[############\] 0-\d+ +\d")
        self.assertRegex(said, r"\n  -> \S+ +- +[1-9]\S* tok/s +100 %\n")
        self.assertRegex(said, r"\n  => \S+ +- +[1-9]\S* tok/s +\S+ (MB|bytes)/s\n")

    def check_status(self, metrics):
        """The plan has not changed since the start."""
        status = self.server.status()
        for edge in status["edges"]:
            ends = {key: edge[key] for key in ("from", "to")}
            for name in ("tokens", "requests"):
                self.assertEqual(metrics.sum(f"millrace_edge_{name}_total", phase=edge["phase"],
                                             **ends), edge[name], edge)
            if edge["phase"] == "hand-over":
                self.assertEqual(metrics.sum("millrace_hand_over_bytes_total", **ends),
                                 edge["bytes"])
                self.assertGreater(edge["bytes_per_s"], 0)
        self.assertEqual([(stage["role"], stage["up"], stage["running"])
                          for stage in status["stages"]],
                         [("prefill", True, 0), ("decode", True, 0)])
        self.assertEqual(status["waiting_for"], {"prefill": 0, "decode": 0, "transfer": 0})

    def test_up_apart(self):
        self.start("up", MODEL, "--prefill-workers", "1", "--decode-workers", "1", "--threads",
                   "1")
        self.server.wait_until_ready()
        self.wait_for_roles(APART)
        self.stream_while(lambda: None)
        self.assertGreaterEqual(self.server.status()["counters"]["moves"], STREAMS)
        self.check_phases()
        self.check_flow()
        # Its process dies and is started again.
        self.stream_while(lambda: os.kill(self.server.workers()[self.worker_of("prefill")],
                                          signal.SIGKILL))
        self.wait_for_roles(APART)
        # It hangs for so long that the other does both.
        pid = self.server.workers()[self.worker_of("prefill")]
        os.kill(pid, signal.SIGSTOP)
        try:
            self.wait_for_roles({"both": 1})
            self.stream_while(lambda: None)
            self.stream_while(lambda: os.kill(pid, signal.SIGCONT))
        finally:
            os.kill(pid, signal.SIGCONT)
        self.wait_for_roles(APART)
        self.stream_while(lambda: None)
        self.metrics()

    def test_replicas_of_two_stages(self):
        """Four workers; one goes for good and another takes its place later."""
        self.serve("--data-parallel-size", "2", "--pipeline-parallel-size", "2",
                   "--dispatch", "round-robin")
        workers = {name: self.join(name) for name in "abcd"}
        self.server.wait_until_ready()
        status = self.wait_for_roles({"both": 2})
        self.assertEqual([len(p["workers"]) for p in status["pipelines"]], [2, 2])

        def lose_one():
            workers["d"].kill()
            self.wait_for_roles({"both": 1})

        self.stream_while(lose_one)
        self.join("e")
        self.wait_for_roles({"both": 2})
        self.stream_while(lambda: None)
        # Both get requests.
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            running = [pool.submit(self.server.stream, asked) for asked in requests()]
            self.wait_for(lambda s: sorted(p["requests"] for p in s["pipelines"]) == [3, 3])
            for one, expected in zip(running, self.expected):
                self.assertEqual(one.result(LIMIT_S)[0], expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
