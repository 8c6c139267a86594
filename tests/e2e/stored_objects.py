#!/usr/bin/env python3
"""Responses in the background and batches survive a server that is killed: the next one, with the
same --store, ends them as an undisturbed server does.

Usage: stored_objects.py PROGRAM MODEL
"""
import itertools
import json
import pathlib
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import FolderTest, take_paths  # noqa: E402
from harness.http import events, send  # noqa: E402
from harness.processes import Process, Server  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

PROGRAM, MODEL = take_paths(2)
END_LIMIT_S = 120
REQUESTS = 32
TOKENS = 200


def upload(server, text):
    form = ("--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
            "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n"
            f"{text}\r\n--b--\r\n")
    status, _, answer = server.request("POST", "/v1/files", form,
                                       {"Content-Type": "multipart/form-data; boundary=b"})
    assert status == 200, answer
    return json.loads(answer)["id"]


def ended(server, path):
    def end():
        found = server.json(path)
        return found if found["status"] not in ("queued", "in_progress", "cancelling") else None
    return wait_for(end, lambda: server.get(path), END_LIMIT_S)


def objects_of(lines):
    """Of a stream that ends without [DONE], without the ids that only some streams have."""
    return (json.loads(data) for _, data in events(lines) if data is not None)


def stored(server, path, after=None):
    """The events of a stored stream."""
    query = "?stream=true" + ("" if after is None else f"&starting_after={after}")
    status, text = server.get(path + query)
    assert status == 200, text
    return list(objects_of(text))


def text_of(response):
    return "".join(part["text"] for item in response["output"] for part in item["content"])


class StoredObjects(FolderTest):
    def setUp(self):
        super().setUp()
        self.store = self.folder / "store"

    def serve(self, *words):
        server = Server(PROGRAM, "serve", MODEL, "--store", self.store, *words)
        self.addCleanup(server.stop)
        server.wait_until_ready()
        return server

    def test_a_response_in_the_background_survives_a_kill(self):
        body = {"input": "Tell a story.", "max_output_tokens": TOKENS, "background": True,
                "stream": True, "temperature": 0.9, "seed": 7}
        server = self.serve()
        # What an undisturbed server answers.
        _, text = server.post("/v1/responses", body)
        expected = list(objects_of(text))
        with server.connect() as connection:
            seen = list(itertools.islice(
                objects_of(send(connection, "POST", "/v1/responses", body)), 20))
        response = "/v1/responses/" + seen[0]["response"]["id"]
        quiet = server.json("/v1/responses",
                            {"input": "Tell another.", "max_output_tokens": TOKENS, "background": True})
        server.kill()

        server = self.serve()
        whole = ended(server, response)
        self.assertEqual(text_of(whole), text_of(expected[-1]["response"]))
        self.assertIn(ended(server, "/v1/responses/" + quiet["id"])["status"],
                      ("completed", "incomplete"))
        rest = stored(server, response, after=seen[-1]["sequence_number"])
        delta = "response.output_text.delta"
        deltas = [event["delta"] for event in seen + rest if event["type"] == delta]
        self.assertEqual("".join(deltas), text_of(whole))
        self.assertEqual(rest[-1]["response"], whole)
        numbers = [event["sequence_number"] for event in seen + rest]
        self.assertEqual(numbers, list(range(len(numbers))))

        # The conversation goes on over another restart.
        self.assertEqual(server.stop(), 0)
        server = self.serve()
        after = server.json("/v1/responses",
                            {"input": "And then?", "max_output_tokens": 8,
                             "previous_response_id": whole["id"]})
        self.assertGreater(after["usage"]["input_tokens"], whole["usage"]["total_tokens"])

    def test_a_batch_survives_a_kill(self):
        lines = [{"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                  "body": {"prompt": f"Once upon a time number {i}", "max_tokens": 40,
                           "temperature": 0.8, "seed": i}} for i in range(REQUESTS)]
        server = self.serve("--max-num-seqs", "4")
        expected = [server.json("/v1/completions", line["body"])["choices"][0]["text"]
                    for line in lines]
        batch = server.json("/v1/batches", {
            "input_file_id": upload(server, "\n".join(map(json.dumps, lines))),
            "endpoint": "/v1/completions", "completion_window": "24h"})
        path = "/v1/batches/" + batch["id"]
        while server.json(path)["request_counts"]["completed"] < REQUESTS // 4:
            time.sleep(0.02)
        server.kill()

        server = self.serve()
        self.assertGreaterEqual(
            server.json(path)["request_counts"]["completed"], REQUESTS // 4)
        batch = ended(server, path)
        self.assertEqual(batch["status"], "completed")
        self.assertEqual(batch["request_counts"],
                         {"total": REQUESTS, "completed": REQUESTS, "failed": 0})
        _, text = server.get(f"/v1/files/{batch['output_file_id']}/content")
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
    unittest.main(verbosity=2)
