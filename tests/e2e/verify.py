#!/usr/bin/env python3
"""A request log that one process wrote, asked again of servers that compute in other ways: with one
thread, small steps and no prefix cache, and as a pipeline of two workers of which one is killed
meanwhile. Every request must have the same tokens; a log with one changed token must be found out.

OTHER_MATH is a library to be preloaded, whose sines and logarithms round differently.

Usage: verify.py PROGRAM MODEL OTHER_MATH [unittest arguments]
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster  # noqa: E402
from harness.processes import Server, run  # noqa: E402

PROGRAM, MODEL, OTHER_MATH = take_paths(3)
LIMIT_S = 300
SCHEMA = {"type": "object", "required": ["zip", "ok"], "additionalProperties": False,
          "properties": {"zip": {"type": "string", "maxLength": 5}, "ok": {"type": "boolean"}}}
PIPELINE = """format: 1
model: demo
layers: 4
stages:
  - {stage: 0, nodes: [a, c], layers: [0, 2]}
  - {stage: 1, nodes: [b], layers: [2, 4]}
edges:
  - {from: coordinator, to: 0, flow: 1 tokens/s}
  - {from: 0, to: 1, flow: 1 tokens/s}
  - {from: 1, to: coordinator, flow: 1 tokens/s}
"""


def requests():
    """Path and body: every kind of answer, most without a seed."""
    chat, text = "/v1/chat/completions", "/v1/completions"
    for i in range(30):
        yield text, {"prompt": f"In the year {i}", "max_tokens": 24, "temperature": 1, "n": 1 + i % 3}
        yield chat, {"messages": [{"role": "user", "content": f"Say {i}"}], "max_tokens": 24,
                     "stream": i % 2 == 0, "temperature": 0.8}
    yield text, {"prompt": ["the same", "the same"], "max_tokens": 12, "temperature": 1}
    yield text, {"prompt": "And", "max_tokens": 16, "use_beam_search": True, "n": 2, "best_of": 4}
    yield text, {"prompt": "And", "max_tokens": 16, "n": 2, "best_of": 5, "stop": [" the"]}
    yield text, {"prompt": "And", "max_tokens": 16, "bad_words": ["the", "he"], "logprobs": 2}
    yield chat, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 64,
                 "response_format": {"type": "json_schema",
                                     "json_schema": {"name": "t", "schema": SCHEMA}}}
    yield "/v1/messages", {"model": "demo", "max_tokens": 16,
                           "messages": [{"role": "user", "content": "hi"}]}
    yield "/v1/responses", {"model": "demo", "max_output_tokens": 16, "input": "hi"}


class Verify(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        cls.kept = tempfile.TemporaryDirectory()
        cls.log = pathlib.Path(cls.kept.name) / "requests.jsonl"
        server = Server(PROGRAM, "serve", MODEL, "--request-log", cls.log)
        server.wait_until_ready()
        with concurrent.futures.ThreadPoolExecutor(8) as many:
            statuses = [status for status, _ in many.map(lambda r: server.post(*r), requests())]
        server.stop()
        assert set(statuses) == {200}, statuses
        cls.lines = len(statuses) + 1  # one body has two prompts

    @classmethod
    def tearDownClass(cls):
        cls.kept.cleanup()

    def verify(self, log, *words):
        return run(PROGRAM, "verify", log, "--base-url", self.url, *words, status=None, limit_s=LIMIT_S)

    def test_a_server_that_computes_in_other_steps(self):
        self.start("serve", MODEL, "--threads", "1", "--max-num-seqs", "5",
                   "--max-num-batched-tokens", "64", "--no-enable-prefix-caching").wait_until_ready()
        done = self.verify(self.log)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, rf"^{self.lines} of {self.lines} requests have the same bits")

        lines = self.log.read_text().splitlines()
        changed = json.loads(lines[4])
        changed["answers"][0]["token_ids"][3] += 1
        lines[4] = json.dumps(changed)
        other = self.folder / "changed.jsonl"
        other.write_text("\n".join(lines) + "\n")
        done = self.verify(other, "--json")
        self.assertEqual(done.returncode, 1)
        found = json.loads(done.stdout)
        self.assertEqual((found["same"], found["different"]), (self.lines - 1, 1))
        self.assertIn(f"line 5, {changed['id']}: ", found["shown"][0])
        self.assertIn("position 3: was token", found["shown"][0])

    def test_a_pipeline_that_loses_a_worker(self):
        plan = self.folder / "plan.yaml"
        plan.write_text(PIPELINE)
        self.serve("--plan", plan)
        workers = {name: self.join(name) for name in "abc"}
        self.server.wait_until_ready()
        killed = []

        def kill_one():
            time.sleep(0.4)
            workers["a"].kill()
            killed.append(self.join("a"))

        killer = threading.Thread(target=kill_one)
        killer.start()
        done = self.verify(self.log, "--concurrency", "4")
        killer.join()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, rf"^{self.lines} of {self.lines} requests have the same bits")
        self.assertEqual(len(killed), 1)

    def test_a_server_with_another_c_library(self):
        """Decision 0038: no served number depends on it, log-probabilities and beams included."""
        sine = [sys.executable, "-c", "import math; print(math.sin(1), math.log(3), math.pow(3, .1))"]
        other = os.environ | {"LD_PRELOAD": OTHER_MATH}
        sines = [subprocess.check_output(sine, env=env).split() for env in (os.environ, other)]
        for here, there in zip(*sines):
            self.assertNotEqual(here, there, "the library is not loaded")

        asked = [{"prompt": "And in the end,", "max_tokens": 24, "temperature": 0.9, "seed": 4,
                  "logprobs": 5, "echo": True},
                 {"prompt": "And", "max_tokens": 16, "use_beam_search": True, "n": 3, "best_of": 5,
                  "length_penalty": 0.7, "logprobs": 3}]

        def answers():
            self.server.wait_until_ready()
            replies = [self.server.post("/v1/completions", body) for body in asked]
            self.assertEqual([status for status, _ in replies], [200] * len(asked))
            return [json.loads(body)["choices"] for _, body in replies]

        self.start("serve", MODEL)
        here = answers()
        self.start("serve", MODEL, env=other)
        self.assertEqual(answers(), here)
        done = self.verify(self.log)
        self.assertRegex(done.stdout, rf"^{self.lines} of {self.lines} requests have the same bits")

    def test_the_log_is_private_and_a_bad_place_is_an_error(self):
        self.assertEqual(self.log.stat().st_mode & 0o077, 0)
        done = run(PROGRAM, "serve", MODEL, "--request-log", "/nowhere/log", status=1)
        self.assertIn("--request-log: /nowhere/log: No such file or directory", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
