#!/usr/bin/env python3
"""Responses in the background and batches survive a server that is killed: the next one, with the
same --store, ends them as an undisturbed server does.

Usage: stored_objects.py PROGRAM MODEL
"""
import json
import pathlib
import sys
import tempfile
import time
import unittest

from cluster_processes import Process, Server

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
END_LIMIT_S = 120
REQUESTS = 32
TOKENS = 200


def ask(server, method, path, body=None, headers=None):
    """Status and text of the answer."""
    with server.connect() as connection:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def ask_json(server, method, path, body=None):
    status, text = ask(server, method, path, None if body is None else json.dumps(body),
                       {"Content-Type": "application/json"})
    if status != 200:
        raise AssertionError(f"{method} {path}: {status} {text}")
    return json.loads(text)


def upload(server, text):
    form = ("--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
            "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n"
            f"{text}\r\n--b--\r\n")
    status, answer = ask(server, "POST", "/v1/files", form,
                         {"Content-Type": "multipart/form-data; boundary=b"})
    assert status == 200, answer
    return json.loads(answer)["id"]


def ended(server, path):
    end = time.monotonic() + END_LIMIT_S
    while True:
        found = ask_json(server, "GET", path)
        if found["status"] not in ("queued", "in_progress", "cancelling"):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.05)


def events(server, path, after=None):
    """The events of a stored stream, without the ids that only some streams have."""
    query = "?stream=true" + ("" if after is None else f"&starting_after={after}")
    status, text = ask(server, "GET", path + query)
    assert status == 200, text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def text_of(response):
    return "".join(part["text"] for item in response["output"] for part in item["content"])


class StoredObjects(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.store = pathlib.Path(folder.name) / "store"

    def serve(self, *words):
        server = Server(PROGRAM, "serve", MODEL, "--store", str(self.store), *words)
        self.addCleanup(server.stop)
        server.wait_until_ready()
        return server

    def test_a_response_in_the_background_survives_a_kill(self):
        body = {"input": "Tell a story.", "max_output_tokens": TOKENS, "background": True,
                "stream": True, "temperature": 0.9, "seed": 7}
        server = self.serve()
        # What an undisturbed server answers.
        _, text = ask(server, "POST", "/v1/responses", json.dumps(body))
        expected = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        with server.connect() as connection:
            connection.request("POST", "/v1/responses", json.dumps(body))
            reply = connection.getresponse()
            seen = []
            while len(seen) < 20:
                line = reply.readline().decode()
                if line.startswith("data: "):
                    seen.append(json.loads(line[6:]))
        response = "/v1/responses/" + seen[0]["response"]["id"]
        quiet = ask_json(server, "POST", "/v1/responses",
                         {"input": "Tell another.", "max_output_tokens": TOKENS, "background": True})
        server.kill()

        server = self.serve()
        whole = ended(server, response)
        self.assertEqual(text_of(whole), text_of(expected[-1]["response"]))
        self.assertIn(ended(server, "/v1/responses/" + quiet["id"])["status"],
                      ("completed", "incomplete"))
        rest = events(server, response, after=seen[-1]["sequence_number"])
        delta = "response.output_text.delta"
        deltas = [event["delta"] for event in seen + rest if event["type"] == delta]
        self.assertEqual("".join(deltas), text_of(whole))
        self.assertEqual(rest[-1]["response"], whole)
        numbers = [event["sequence_number"] for event in seen + rest]
        self.assertEqual(numbers, list(range(len(numbers))))

        # The conversation goes on over another restart.
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        after = ask_json(server, "POST", "/v1/responses",
                         {"input": "And then?", "max_output_tokens": 8,
                          "previous_response_id": whole["id"]})
        self.assertGreater(after["usage"]["input_tokens"], whole["usage"]["total_tokens"])

    def test_a_batch_survives_a_kill(self):
        lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                  "body": {"prompt": f"Once upon a time number {i}", "max_tokens": 40,
                           "temperature": 0.8, "seed": i}} for i in range(REQUESTS)]
        server = self.serve("--max-num-seqs", "4")
        expected = [ask_json(server, "POST", "/v1/completions", line["body"])["choices"][0]["text"]
                    for line in lines]
        batch = ask_json(server, "POST", "/v1/batches", {
            "input_file_id": upload(server, "\n".join(map(json.dumps, lines))),
            "endpoint": "/v1/completions", "completion_window": "24h"})
        path = "/v1/batches/" + batch["id"]
        while ask_json(server, "GET", path)["request_counts"]["completed"] < REQUESTS // 4:
            time.sleep(0.02)
        server.kill()

        server = self.serve()
        self.assertGreaterEqual(
            ask_json(server, "GET", path)["request_counts"]["completed"], REQUESTS // 4)
        batch = ended(server, path)
        self.assertEqual(batch["status"], "completed")
        self.assertEqual(batch["request_counts"],
                         {"total": REQUESTS, "completed": REQUESTS, "failed": 0})
        _, text = ask(server, "GET", f"/v1/files/{batch['output_file_id']}/content")
        found = {line["custom_id"]: line["response"]["body"]["choices"][0]["text"]
                 for line in map(json.loads, text.splitlines())}
        self.assertEqual([found[f"r{i}"] for i in range(REQUESTS)], expected)
        self.assertEqual(server.stop(), 0)

    def test_one_server_has_the_store(self):
        self.serve()
        second = Process(PROGRAM, "serve", MODEL, "--port", "0", "--store", str(self.store))
        self.addCleanup(second.stop)
        self.assertIn("--store", second.wait_for("in use by another process"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
