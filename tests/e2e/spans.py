#!/usr/bin/env python3
"""Spans of a running server at a collector on loopback: their form is that of OTLP's JSON mapping,
they follow the caller's trace, and a collector that is slow, refuses or is gone costs no answer.

Usage: spans.py PROGRAM MODEL [unittest arguments]
"""
import http.server
import json
import pathlib
import re
import sys
import threading
import time
import unittest

import prometheus_text
from cluster_processes import Server, free_port

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
MODEL = str(pathlib.Path(sys.argv.pop(1)).resolve())
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
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.posts += 1
                assert self.path == "/v1/traces", self.path
                assert self.headers["content-type"] == "application/json"
                if outer.answer is None:
                    outer.over.wait(LIMIT_S)
                    return
                if outer.answer == 200:
                    REQUEST(body)
                    for resource in body["resourceSpans"]:
                        for scope in resource["scopeSpans"]:
                            outer.spans += scope["spans"]
                self.send_response(outer.answer)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


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
        with self.server.connect() as connection:
            connection.request("POST", path, json.dumps(body),
                               {"Content-Type": "application/json", **(headers or {})})
            reply = connection.getresponse()
            text = reply.read().decode()
            return reply.status, reply.headers, text

    def wait_until(self, happens):
        end = time.monotonic() + LIMIT_S
        while not (value := happens()):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return value

    def metric(self, name):
        return prometheus_text.parse(self.server.get("/metrics")[1]).sum(name)

    def test_a_request_and_its_parts_in_the_trace_of_its_caller(self):
        collector = self.collector()
        self.start(collector.url)
        before = time.time_ns()
        status, headers, text = self.complete({"traceparent": PARENT})
        self.assertEqual(status, 200, text)
        answer = json.loads(text)
        roots = self.wait_until(lambda: [s for s in collector.spans if s["kind"] == 2])
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
        self.wait_until(lambda: self.metric("millrace_spans_sent_total") == len(collector.spans))
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
        roots = self.wait_until(lambda: len(r := [s for s in collector.spans if s["kind"] == 2]) == 2
                                and r)
        self.assertNotIn("parentSpanId", roots[0])
        self.assertEqual({r["traceId"] for r in roots},
                         {h["traceparent"].split("-")[1] for h in (first, second)})

    def check_costs_nothing(self, url):
        self.start(url)
        for _ in range(3):
            self.assertEqual(self.complete()[0], 200)
        self.wait_until(lambda: self.metric("millrace_spans_dropped_total") > 0)
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
