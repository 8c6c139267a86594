#!/usr/bin/env python3
"""Spans of a running server at a collector on loopback: their form is that of OTLP's JSON mapping,
they follow the caller's trace, and a collector that is slow, refuses or is gone costs no answer.

Usage: spans.py PROGRAM MODEL [unittest arguments]
"""
import json
import pathlib
import re
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import prometheus  # noqa: E402
from harness.cases import take_paths  # noqa: E402
from harness.fakes import FakeServer, send  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import Server  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

PROGRAM, MODEL = take_paths(2)
LIMIT_S = 60
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ATTRIBUTES = {
    "gen_ai.request.id", "gen_ai.request.model", "gen_ai.response.model",
    "gen_ai.request.max_tokens", "gen_ai.request.temperature", "gen_ai.request.top_p",
    "gen_ai.request.n", "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens",
    "gen_ai.usage.num_sequences", "gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e",
    "gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill",
    "gen_ai.latency.time_in_model_decode", "gen_ai.latency.time_in_model_inference"}


# The JSON mapping of opentelemetry.proto: the fields of each message that may be used, by type.
def hexadecimal(digits):
    return lambda value: isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{digits}}}", value)


def uint64(value):
    return isinstance(value, str) and re.fullmatch(r"\d{1,20}", value)


def is_text(value):
    return isinstance(value, str)


def any_value(value):
    kinds = {"stringValue": is_text, "intValue": lambda v: is_text(v) and int(v) is not None,
             "doubleValue": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)}
    return len(value) == 1 and all(kinds[kind](v) for kind, v in value.items())


def message(required, optional=None):
    optional = optional or {}

    def check(value):
        assert isinstance(value, dict), value
        assert required.keys() <= value.keys() <= required.keys() | optional.keys(), value
        for field, content in value.items():
            assert (required | optional)[field](content), (field, content)
        return True
    return check


def many(check):
    return lambda values: isinstance(values, list) and all(check(v) for v in values)


KEY_VALUES = many(message({"key": is_text, "value": any_value}))
SPAN = message({"traceId": hexadecimal(32), "spanId": hexadecimal(16), "name": is_text,
                "kind": lambda v: v in (1, 2), "startTimeUnixNano": uint64,
                "endTimeUnixNano": uint64, "attributes": KEY_VALUES},
               {"parentSpanId": hexadecimal(16), "status": message({"code": lambda v: v == 2})})
SCOPE = message({"name": is_text, "version": is_text})
REQUEST = message({"resourceSpans": many(message({
    "resource": message({"attributes": KEY_VALUES}),
    "scopeSpans": many(message({"scope": SCOPE, "spans": many(SPAN)}))}))})


class Collector:
    """`answer`: the status of its answers; None: it never answers."""

    def __init__(self, answer=200):
        self.answer, self.spans, self.posts, self.over = answer, [], 0, threading.Event()
        self.server = FakeServer(self.take)
        self.url = self.server.url

    def take(self, handler, body):
        body = json.loads(body)
        self.posts += 1
        assert (handler.command, handler.path) == ("POST", "/v1/traces"), handler.path
        assert handler.headers["content-type"] == "application/json"
        if self.answer is None:
            self.over.wait(LIMIT_S)
            return
        if self.answer == 200:
            REQUEST(body)
            for resource in body["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    self.spans += scope["spans"]
        send(handler, self.answer, "{}")

    def close(self):
        self.over.set()
        self.server.close()


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


class Spans(unittest.TestCase):
    def start(self, url):
        self.server = Server(PROGRAM, "serve", MODEL, "--threads", "1", "--otlp-endpoint", url)
        self.addCleanup(self.server.stop)
        self.server.wait_until_ready()

    def collector(self, answer=200):
        collector = Collector(answer)
        self.addCleanup(collector.close)
        return collector

    def complete(self, headers=None, path="/v1/completions", **fields):
        if path == "/v1/completions":
            fields["prompt"] = "Once upon a time"
        body = {"max_tokens": 20, "temperature": 0.5, "top_p": 0.9,
                **fields}
        return self.server.request("POST", path, body, headers)

    def metric(self, name):
        return prometheus.parse(self.server.get("/metrics")[1]).sum(name)

    def test_a_request_and_its_parts_in_the_trace_of_its_caller(self):
        collector = self.collector()
        self.start(collector.url)
        before = time.time_ns()
        status, headers, text = self.complete({"traceparent": PARENT})
        self.assertEqual(status, 200, text)
        answer = json.loads(text)
        roots = wait_for(lambda: [s for s in collector.spans if s["kind"] == 2], "a span")
        root, = roots
        self.assertEqual((root["traceId"], root["parentSpanId"]), tuple(PARENT.split("-")[1:3]))
        self.assertEqual(headers["traceparent"], f"00-{root['traceId']}-{root['spanId']}-01")
        said = attributes(root)
        self.assertLessEqual(ATTRIBUTES, said.keys())
        self.assertEqual(said["gen_ai.request.id"], answer["id"])
        self.assertEqual((said["gen_ai.request.temperature"], said["gen_ai.request.top_p"]),
                         (0.5, 0.9))
        self.assertEqual(said["gen_ai.request.max_tokens"], "20")
        self.assertEqual(said["gen_ai.usage.prompt_tokens"], str(answer["usage"]["prompt_tokens"]))
        self.assertEqual(said["gen_ai.usage.completion_tokens"],
                         str(answer["usage"]["completion_tokens"]))
        parts = [s for s in collector.spans if s["kind"] == 1]
        self.assertTrue(all(s["parentSpanId"] == root["spanId"] for s in parts))
        self.assertLessEqual({"prefill", "decode"}, {s["name"] for s in parts})

        def length(span):
            return int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
        self.assertAlmostEqual(sum(map(length, parts)), length(root), delta=0.02 * length(root))
        self.assertLess(abs(int(root["startTimeUnixNano"]) - before), 5e9, "the wall clock")
        wait_for(lambda: self.metric("millrace_spans_sent_total") == len(collector.spans), "all are sent")
        self.assertEqual(self.metric("millrace_spans_dropped_total"), 0)

    def test_a_caller_that_does_not_sample_and_one_without_a_trace(self):
        collector = self.collector()
        self.start(collector.url)
        _, headers, _ = self.complete({"traceparent": PARENT[:-1] + "0"})
        self.assertRegex(headers["traceparent"], r"^00-0af7651916cd43dd8448eb211c80319c-\w{16}-00$")
        _, first, _ = self.complete({"traceparent": "nonsense"})
        _, second, _ = self.complete(path="/v1/chat/completions",
                                     messages=[{"role": "user", "content": "Hi"}])
        self.assertRegex(first["traceparent"], r"^00-\w{32}-\w{16}-01$")
        roots = wait_for(lambda: len(r := [s for s in collector.spans if s["kind"] == 2]) == 2 and r,
                         "two spans")
        self.assertNotIn("parentSpanId", roots[0])
        self.assertEqual({r["traceId"] for r in roots},
                         {h["traceparent"].split("-")[1] for h in (first, second)})

    def check_costs_nothing(self, url):
        self.start(url)
        for _ in range(3):
            self.assertEqual(self.complete()[0], 200)
        wait_for(lambda: self.metric("millrace_spans_dropped_total") > 0, "spans are dropped")
        self.assertEqual(self.metric("millrace_spans_sent_total"), 0)
        self.assertEqual(len(self.server.said("spans are dropped")), 1, "one warning a minute")
        self.assertEqual(self.complete()[0], 200)

    def test_a_collector_that_is_gone(self):
        self.check_costs_nothing(f"http://127.0.0.1:{free_port()}")

    def test_a_collector_that_refuses(self):
        self.check_costs_nothing(self.collector(503).url)

    def test_a_collector_that_never_answers(self):
        self.check_costs_nothing(self.collector(None).url)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
