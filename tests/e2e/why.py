#!/usr/bin/env python3
"""What the time of requests goes into, on running servers: the entries of every account add up to
the time that its client waited, and name the cause that the test has brought about: a queue, a
prompt beside, a lost worker, a move, a hand-over. `millrace why` says the same in words.

Usage: why.py PROGRAM MODEL [unittest arguments]
"""
import concurrent.futures
import json
import pathlib
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import REPLICAS, JoinedCluster  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

PROGRAM, MODEL = take_paths(2)
LIMIT_S = 120
# How far the entries may be from the time that the account states, and that from the client's time.
# On a busy machine, threads wait for a processor before they look at the clock.
SHARE = 0.02
CLIENT_S = 0.25


def entries(account, use=None, cause=None):
    return [e for e in account["entries"]
            if use in (None, e["use"]) and cause in (None, e.get("cause", ""))]


def seconds(account, use=None, cause=None):
    return sum(e["seconds"] for e in entries(account, use, cause))


class Accounts(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    def complete(self, name, **fields):
        """The client's time for a request of this name."""
        body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, **fields}
        begin = time.monotonic()
        status, _, text = self.server.request("POST", "/v1/completions", body, {"x-request-id": name})
        if status != 200:
            raise AssertionError(text)
        return time.monotonic() - begin

    def info(self, name):
        status, text = self.server.admin("GET", f"/debug/requests/{name}")
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def ended(self, name):
        """Its account, once its answer has been delivered."""
        def account():
            info = self.info(name)
            return info["state"] == "finished" and entries(info["account"]) and info["account"]
        return wait_for(account, lambda: self.info(name), LIMIT_S, 0.02)

    def check(self, account, client_s=None):
        self.assertAlmostEqual(seconds(account), account["wall_s"], delta=SHARE * account["wall_s"],
                               msg=json.dumps(account))
        if client_s is not None:
            self.assertAlmostEqual(account["wall_s"], client_s,
                                   delta=max(SHARE * client_s, CLIENT_S), msg=json.dumps(account))

    def why(self, *words):
        return self.run_ok("why", *words, "--base-url", self.url)


class OneProcess(Accounts):
    def setUp(self):
        super().setUp()
        self.start("serve", MODEL, "--threads", "1", "--max-num-seqs", "2", "--max-num-batched-tokens",
                   "64", "--num-gpu-blocks-override", "64").wait_until_ready()

    def test_a_queue_and_its_cause(self):
        names = [f"crowd-{i}" for i in range(8)]
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            took = dict(zip(names, pool.map(lambda n: self.complete(n, max_tokens=300), names)))
        accounts = {name: self.ended(name) for name in names}
        for name, account in accounts.items():
            self.check(account, took[name])
            self.assertGreater(seconds(account, "decode"), 0)
            self.assertGreater(seconds(account, "prefill"), 0)
            self.assertLess(seconds(account, "deliver"), 0.1 * account["wall_s"])
            self.assertEqual(sum(e["tokens"] for e in entries(account, "decode")), 299)
            self.assertEqual(account["token_gaps"]["count"], 299)
        slowest = max(names, key=lambda name: accounts[name]["wall_s"])
        queued = entries(accounts[slowest], "queue", "max_num_seqs")
        self.assertGreater(queued[0]["seconds"], 0.5 * accounts[slowest]["wall_s"])
        self.assertGreater(queued[0]["requests_ahead"] + queued[0]["requests_running"], 2)

        said = self.why(slowest)
        self.assertRegex(said, r"(?m)^queue +[\d.]+ ms +[\d.]+ %  #+ ")
        self.assertRegex(said, r"\n\d+ % of [\d.]+ m?s was queueing behind \d+ requests.*: all places "
                               r"of --max-num-seqs were taken\. Cure: a larger --max-num-seqs")
        self.assertIn("max_num_seqs", self.why(slowest, "--json"))
        self.assertIn("queueing behind", json.loads(self.why(slowest, "--json"))["verdict"])
        lines = self.why("--slowest", "3").splitlines()
        self.assertEqual(len(lines), 4, lines)
        self.assertIn("queueing behind", lines[1])
        listed = json.loads(self.why("--slowest", "3", "--json"))["requests"]
        self.assertEqual(listed[0]["request_id"], slowest)

    def test_a_prompt_beside_and_a_request_that_runs(self):
        thread = threading.Thread(target=self.complete, args=("chat",),
                                  kwargs={"max_tokens": 700})
        thread.start()
        self.addCleanup(thread.join)
        wait_for(lambda: "chat" in [r["request_id"] for r in json.loads(
            self.server.admin("GET", "/debug/requests")[1])["requests"]], "it is there", LIMIT_S, 0)
        running = self.info("chat")
        self.complete("long", prompt="word " * 150, max_tokens=2)
        if running["state"] == "running":
            self.check(running["account"])
        thread.join()
        chat, long = self.ended("chat"), self.ended("long")
        self.check(chat)
        self.check(long)
        beside = entries(chat, "decode", "prompts_of_others")
        self.assertTrue(beside, chat)
        self.assertEqual(beside[0]["requests"], [self.info("long")["id"]])
        self.assertGreaterEqual(beside[0]["other_tokens"], 150)
        self.assertGreaterEqual(sum(e["tokens"] for e in entries(long, "prefill")), 150)

    def test_several_sequences_and_prompts_share_or_have_accounts(self):
        took = self.complete("four", n=2, temperature=1, seed=1)
        self.check(self.ended("four"), took)
        took = self.complete("batch", prompt=["one", "two", "three"])
        first = self.info("batch")
        self.assertEqual(len(first["others"]), 2)
        self.check(self.ended("batch"), took)

    def test_what_cannot_be_answered(self):
        self.assertEqual(self.server.admin("GET", "/debug/requests/nobody")[0], 404)
        for query in ("slowest=0", "slowest=x", "fastest=1"):
            self.assertEqual(self.server.admin("GET", f"/debug/requests?{query}")[0], 400, query)


class Joined(Accounts):
    def serve_replicas(self):
        plan = self.folder / "plan.yaml"
        plan.write_text(REPLICAS)
        self.serve("--plan", plan)
        self.workers = {name: self.join(name) for name in "ab"}
        self.wait_for(lambda s: len([p for p in s["pipelines"] if p["state"] == "open"]) == 2)
        self.server.wait_until_ready()

    def begin(self, name, tokens=900):
        """Streams in the background; returns once it has tokens, with the worker that runs it."""
        result = {}
        thread = threading.Thread(
            target=lambda: result.update(took=self.complete(name, max_tokens=tokens)))
        thread.start()
        self.addCleanup(thread.join)
        def has_tokens():
            status, text = self.server.admin("GET", f"/debug/requests/{name}")
            return status == 200 and json.loads(text).get("output_tokens", 0) > 20
        wait_for(has_tokens, "it has tokens", LIMIT_S, 0)
        used = [p["workers"] for p in self.server.status()["pipelines"] if p["requests"]]
        return thread, result, used[0][0]

    def test_a_lost_worker(self):
        self.serve_replicas()
        thread, result, worker = self.begin("survivor")
        self.workers[worker].kill()
        thread.join()
        account = self.ended("survivor")
        self.check(account, result["took"])
        again = entries(account, "recompute", "pipeline_lost")
        self.assertTrue(again, account)
        self.assertGreater(again[0]["tokens"], 20)
        self.assertTrue(entries(account, "requeue", "pipeline_lost"), account)
        self.assertIn("what a lost pipeline took along", self.why("survivor"))

    def test_a_move_with_its_kv(self):
        self.serve_replicas()
        thread, result, worker = self.begin("mover")
        other = "b" if worker == "a" else "a"
        status, text = self.server.admin("POST", "/cluster/migrate",
                                         {"request": "mover", "worker": other})
        self.assertEqual(status, 200, text)
        thread.join()
        account = self.ended("mover")
        self.check(account, result["took"])
        pulls = entries(account, "pull", "move")
        self.assertTrue(pulls, account)
        self.assertEqual(pulls[0].get("from", worker), worker)


class Apart(Accounts):
    def test_a_hand_over(self):
        self.start("up", MODEL, "--prefill-workers", "1", "--decode-workers", "1", "--threads",
                   "1").wait_until_ready()
        self.wait_for(
            lambda s: len([p for p in s["pipelines"] if p["state"] == "open"]) == 2)
        took = self.complete("handed", prompt="There was a harbour in the north. " * 40)
        account = self.ended("handed")
        self.check(account, took)
        pulls = entries(account, "pull", "hand_over")
        self.assertTrue(pulls, account)
        self.assertGreater(pulls[0]["bytes"], 0)
        self.assertGreater(pulls[0]["gb_per_s"], 0)
        self.assertTrue(pulls[0]["from"].startswith("worker-"), pulls)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
