#!/usr/bin/env python3
"""Workers of two numeric classes in one cluster, as processes: one computes with --activations
bf16x2. Each answer is byte for byte that of a single process of the class that its fingerprint
names. A request keeps to its class, and leaves it only with --cross-class-replay.

Usage: cluster_classes.py PROGRAM MODEL [unittest arguments]
"""
import concurrent.futures
import json
import pathlib
import sys
import time
import unittest
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster  # noqa: E402
from harness.http import objects, send  # noqa: E402
from harness.processes import Server, run  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

PROGRAM, MODEL = take_paths(2)
CLASSES = {"plain": [], "exact": ["--activations", "bf16x2"]}
LIMIT_S = 90
GONE_S = 4  # longer than a controller waits before it lays out the layers again
LONG = 600  # tokens of an answer during which workers die


def request(number, tokens=40):
    return {"prompt": f"{number} times upon a time there was", "max_tokens": tokens,
            "ignore_eos": True, "seed": number, "temperature": 0 if number % 2 == 0 else 0.9,
            "logprobs": 2}


def token_ids(texts):
    """Of tokens as log-probabilities show them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for i, byte in enumerate(sorted(set(range(256)) - set(printable))):
        letters[byte] = chr(256 + i)
    vocabulary = json.loads((pathlib.Path(MODEL) / "tokenizer.json").read_text())["model"]["vocab"]

    def name(text):
        if text.startswith("bytes:"):
            raw = bytes(int(part, 16) for part in text.removeprefix("bytes:").split("\\x")[1:])
        else:
            raw = text.encode()
        return "".join(letters[byte] for byte in raw)

    return [vocabulary[name(text)] for text in texts]


class Stream:
    """A streamed completion while it comes: its tokens, with the fingerprint of their chunks."""

    def __init__(self, server, asked):
        self.server, self.asked = server, asked
        self.tokens, self.of_all = [], None

    def run(self):
        with self.server.connect() as connection:
            body = {**self.asked, "stream": True, "stream_options": {"include_usage": True}}
            for event in objects(send(connection, "POST", "/v1/completions", body)):
                if event["choices"]:
                    texts = event["choices"][0]["logprobs"]["tokens"]
                    self.tokens += [(text, event["system_fingerprint"]) for text in texts]
                else:
                    self.of_all = event["system_fingerprint"]
        return self

    def texts(self):
        return [text for text, _ in self.tokens]


class Classes(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        """A process of each class, as the reference."""
        cls.alone = {}  # by fingerprint
        for name, words in CLASSES.items():
            server = Server(PROGRAM, "serve", MODEL, "--threads", "1", *words)
            cls.addClassCleanup(server.stop)
            server.wait_until_ready()
            fingerprint = server.json("/v1/completions", request(0, 1))["system_fingerprint"]
            cls.alone[fingerprint] = server
            setattr(cls, name, fingerprint)

    @staticmethod
    def complete(server, asked):
        return server.json("/v1/completions", asked)

    def worker(self, name, numeric_class):
        return self.join(name, *CLASSES[numeric_class])

    def wait_for_pipelines(self, *fingerprints):
        self.wait_for(lambda s: sorted(p["fingerprint"] for p in s["pipelines"]
                                       if p["state"] == "open") == sorted(fingerprints), LIMIT_S)

    def check(self, asked, answer):
        """It is what a process of its class answers."""
        expected = self.complete(self.alone[answer["system_fingerprint"]], asked)
        self.assertEqual(answer["choices"], expected["choices"])
        return answer["system_fingerprint"]

    def test_each_answer_is_that_of_its_class(self):
        self.assertNotEqual(self.plain, self.exact)
        asked = [request(i) for i in range(12)]
        bodies = [[self.complete(server, one)["choices"] for one in asked]
                  for server in self.alone.values()]
        self.assertNotEqual(*bodies, "the classes would not show")
        self.serve("--data-parallel-size", "2")
        self.worker("a", "plain")
        self.worker("b", "exact")
        self.wait_for_pipelines(self.plain, self.exact)
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda one: self.complete(self.server, one), asked))
        seen = [self.check(*pair) for pair in zip(asked, answers)]
        self.assertEqual(set(seen), {self.plain, self.exact})
        shown = self.run_ok("status", "--base-url", self.url)
        table = shown[shown.index("CLASS"):]
        for fingerprint in (self.plain, self.exact):
            self.assertIn(fingerprint, table)

    def begin_long_one(self, pool, fingerprint):
        """A stream that the class with the fingerprint computes, once it has tokens."""
        for number in range(0, 40, 2):
            stream = Stream(self.server, request(number, LONG))
            running = pool.submit(stream.run)
            wait_for(lambda: len(stream.tokens) > 3, "it has tokens", LIMIT_S)
            if stream.tokens[0][1] == fingerprint:
                return stream, running
        raise AssertionError(f"no request went to {fingerprint}")

    def test_a_request_keeps_to_its_class(self):
        self.serve("--data-parallel-size", "2")
        worker = self.worker("a", "plain")
        self.worker("b", "exact")
        self.wait_for_pipelines(self.plain, self.exact)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            stream, running = self.begin_long_one(pool, self.plain)
            worker.kill()
            time.sleep(GONE_S)
            asked = request(100)
            self.assertEqual(self.check(asked, self.complete(self.server, asked)), self.exact)
            self.assertFalse(running.done())
            self.worker("a", "plain")
            running.result(LIMIT_S)
        self.assertEqual({fingerprint for _, fingerprint in stream.tokens}, {self.plain})
        expected = self.complete(self.alone[self.plain], stream.asked)
        self.assertEqual(stream.texts(), expected["choices"][0]["logprobs"]["tokens"])
        self.assertEqual(stream.of_all, self.plain)

    def test_a_request_leaves_its_class_with_the_option(self):
        self.serve("--cross-class-replay")
        worker = self.worker("a", "plain")
        self.wait_for_pipelines(self.plain)
        self.worker("b", "exact")
        status = self.wait_for(lambda s: any(w["name"] == "b" for w in s["workers"]), LIMIT_S)
        note = next(w["note"] for w in status["workers"] if w["name"] == "b")
        self.assertIn("it is spare, because its bits differ", note)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            stream, running = self.begin_long_one(pool, self.plain)
            worker.kill()
            running.result(LIMIT_S)
        self.assertEqual(len(stream.tokens), LONG)
        fingerprints = [fingerprint for _, fingerprint in stream.tokens]
        before = fingerprints.count(self.plain)
        self.assertEqual(fingerprints, [self.plain] * before + [self.exact] * (LONG - before))
        self.assertEqual(stream.of_all, f"{self.plain}+{self.exact}")
        # The first part is of the one class; the rest is what the other makes of these tokens.
        expected = self.complete(self.alone[self.plain], stream.asked)
        texts = stream.texts()
        self.assertEqual(texts[:before], expected["choices"][0]["logprobs"]["tokens"][:before])
        prompt = self.server.json("/tokenize", {"prompt": stream.asked["prompt"]})
        rest = {**stream.asked, "prompt": prompt["tokens"] + token_ids(texts[:before]),
                "max_tokens": LONG - before}
        expected = self.complete(self.alone[self.exact], rest)
        self.assertEqual(texts[before:], expected["choices"][0]["logprobs"]["tokens"])

    def test_a_plan_that_joins_classes_is_refused(self):
        self.serve()
        self.worker("a", "plain")
        self.wait_for_pipelines(self.plain)
        self.worker("b", "exact")
        self.wait_for(lambda s: len(s["workers"]) == 2, LIMIT_S)
        plan = self.folder / "plan.yaml"
        plan.write_text("format: 1\nmodel: demo\nlayers: 4\nstages:\n"
                        "  - {stage: 0, nodes: [a], layers: [0, 2]}\n"
                        "  - {stage: 1, nodes: [b], layers: [2, 4]}\n")
        done = run(PROGRAM, "plan", "apply", plan, "--base-url", self.url, status=None)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the plan passes activations or KV between a and b, whose bits differ",
                      done.stderr)
        asked = request(1)
        self.assertEqual(self.check(asked, self.complete(self.server, asked)), self.plain)


if __name__ == "__main__":
    unittest.main(verbosity=2)
