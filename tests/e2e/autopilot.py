#!/usr/bin/env python3
"""The autopilot on real workers: it finds that a spare worker should serve, changes the plan,
verifies it, survives the death of a worker and a restart of the controller, and every answer is
byte-identical to that of one process. The workers bring profiles that say they are slow, so that a
small load is more than one of them is forecast to carry.

Usage: autopilot.py PROGRAM MODEL [unittest arguments]
"""
import json
import pathlib
import re
import sys
import tempfile
import threading
import time
import unittest
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import ROOT, take_paths  # noqa: E402
from harness.cluster import JoinedCluster, answers_of_one_process  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import START_LIMIT_S, Process, Server, make_token  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

PROGRAM, MODEL = take_paths(2)
DOCS = ROOT / "docs"
REQUESTS = [{"prompt": f"The harbour lay still, and number {i} of the", "max_tokens": 24,
             "temperature": 0.9, "seed": i, "ignore_eos": True} for i in range(12)]
RATE = 5  # requests per second


def slow(profile):
    """The profile with the times of a slow worker, which are the same however busy the machine was
    when it was measured: with the limits below it is forecast to answer three requests a second."""
    profile = json.loads(json.dumps(profile))
    for part, share in (("step", 1), ("layers", 0.9)):
        profile[part] |= {"fixed_s": 0.02 * share, "prefill_squared_s": 0, "decode_context_s": 0,
                          "token_knots": [0], "token_s": [0.004 * share],
                          "sequence_knots": [0], "sequence_s": [0.008 * share]}
    return profile


class Autopilot(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        cls.expected = answers_of_one_process(PROGRAM, MODEL, REQUESTS)
        with tempfile.TemporaryDirectory() as folder:
            cls.profile = json.dumps(slow(cls.measure(pathlib.Path(folder))))

    @classmethod
    def measure(cls, folder):
        """The profile that one worker measures."""
        token = make_token(PROGRAM, folder)
        joins = f"127.0.0.1:{free_port()}"
        server = Server(PROGRAM, "serve", MODEL, "--cluster", f"sqlite:{folder}/state",
                        "--listen", joins, "--token", token)
        worker = Process(PROGRAM, "worker", MODEL, "--join", joins, "--token", token, "--name",
                         "measured", "--threads", "1", "--measure-profile", "--profile-cache", str(folder / "cache"))
        try:
            def profiles():
                machines = json.loads(server.admin("GET", "/cluster/machines")[1])
                return [m["profile"] for m in machines["workers"] if m["profile"]]

            return json.loads(wait_for(profiles, "a profile", START_LIMIT_S, 0.2)[0])
        finally:
            worker.stop()
            server.stop()

    def setUp(self):
        super().setUp()
        (self.folder / "profile.json").write_text(self.profile)
        self.answered, self.wrong = 0, []

    def serve_with(self, mode):
        return self.serve("--autopilot", mode, "--slo", "ttft=2s", "tpot=400ms",
                          "--autopilot-window", 2, "--autopilot-verify", 5)

    def join_slow(self, name):
        return self.join(name, "--profile", self.folder / "profile.json")

    def load(self, server, seconds):
        """Requests at a steady rate; remembers those whose answers differ from one process's."""
        def ask(i):
            text = server.stream(REQUESTS[i])[0]
            if text != self.expected[i]:
                self.wrong.append((i, text))
            self.answered += 1
        threads = []
        end, i = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            threads.append(threading.Thread(target=ask, args=(i % len(REQUESTS),)))
            threads[-1].start()
            time.sleep(1 / RATE)
            i += 1
        for thread in threads:
            thread.join()

    def decisions(self):
        return json.loads(self.run_ok("decisions", "--json", "--base-url", self.url))["decisions"]

    def load_until(self, server, found, limit_s=90):
        """Keeps the load up until a decision is as wanted, and returns it."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            self.load(server, 2)
            for decision in self.decisions():
                if found(decision):
                    return decision
        self.fail(self.run_ok("decisions", "--base-url", self.url))
        return None

    def test_acts_verifies_survives(self):
        server = self.serve_with("act")
        workers = {name: self.join_slow(name) for name in ("a", "b")}
        server.wait_until_ready()
        changed = self.load_until(server, lambda d: d["decision"] == "change" and d["outcome"])
        self.assertIn("verified: ", changed["outcome"])
        self.assertEqual(sorted(worker["state"] for worker in server.status()["workers"]),
                         ["serving", "serving"])
        self.assertEqual(changed["workers"], 2)
        self.assertGreater(changed["gain_requests_per_s"], 0)
        full = self.run_ok("decisions", changed["id"], "--base-url", self.url)
        self.assertIn("  found ", full)
        plan = self.folder / "plan.yaml"
        plan.write_text(self.run_ok("decisions", "--plan", changed["id"], "--base-url", self.url))
        self.assertIn("no layer moves", self.run_ok("plan", "diff", plan, "--base-url", self.url))

        # A worker dies while it answers.
        killed = threading.Timer(1, workers["b"].kill)
        killed.start()
        lost = self.load_until(server, lambda d: "lost b" in d["why"])
        self.assertEqual(lost["cause"], "workers changed")
        self.assertEqual((self.wrong, server.status()["counters"]["failed_by_losses"]), ([], 0))
        self.assertGreater(self.answered, 60)

        # The next controller knows what this one decided.
        before = self.decisions()
        server.stop()
        self.serve_with("advise")
        after = self.decisions()[:len(before)]
        self.assertEqual([d["id"] for d in after], [d["id"] for d in before])
        self.assertEqual(after[0]["reason"], before[0]["reason"])

    def test_advises_and_leaves_the_plan_alone(self):
        server = self.serve_with("advise")
        for name in ("a", "b"):
            self.join_slow(name)
        server.wait_until_ready()
        self.load_until(server, lambda d: d["decision"] == "advise")
        # A newer advice may have taken the place of the first one.
        shown = self.run_ok("status", "--advice", "--base-url", self.url)
        advised = re.search(r"millrace decisions --plan (\d+) > plan\.yaml", shown)
        self.assertTrue(advised, shown)
        self.assertTrue(re.search(r"\nmillrace_autopilot_advice\{.*\} 1\n",
                                  server.get("/metrics")[1]))
        self.assertEqual(server.status()["epoch"], 1)
        self.assertEqual(server.status()["autopilot"]["mode"], "advise")
        # An operator follows it, and no advice is left.
        plan = self.folder / "plan.yaml"
        plan.write_text(self.run_ok("decisions", "--plan", advised.group(1), "--base-url", self.url))
        self.run_ok("plan", "apply", plan, "--base-url", self.url)
        time.sleep(1.5)
        self.assertIn("advises no change", self.run_ok("status", "--advice", "--base-url", self.url))
        self.assertEqual(self.wrong, [])

    def test_the_commands_of_the_page(self):
        """Those of docs/autopilot.md. What follows advice is done above."""
        lines = re.findall(r"^millrace .*$", (DOCS / "autopilot.md").read_text(), re.M)
        up, *looks = [line.split()[1:] for line in lines[:3]]
        self.assertEqual(lines[3:], ["millrace decisions --plan 3 > plan.yaml",
                                     "millrace plan apply plan.yaml"])
        self.assertEqual(up[:2], ["up", "models/demo"])
        self.start("up", MODEL, *up[2:]).wait_until_ready()
        for words in looks:
            self.run_ok(*words, "--base-url", self.url)


if __name__ == "__main__":
    unittest.main(verbosity=2)
