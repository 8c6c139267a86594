#!/usr/bin/env python3
"""A running cluster as the planner's input: two workers that were joined by hand say what they are;
`cluster describe` writes it, `plan` reads it (from the file and directly), `plan apply` takes the
plan, and the cluster answers with it as one process does.

Usage: cluster_describe.py PROGRAM MODEL [unittest arguments]
"""
import json
import os
import pathlib
import re
import sys
import unittest
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster, answers_of_one_process  # noqa: E402
from harness.ports import LINK_BYTES, Link  # noqa: E402
from harness.processes import START_LIMIT_S, run  # noqa: E402

PROGRAM, MODEL = take_paths(2)
FAR_S = 0.02  # from the controller to worker b, and back
REQUEST = {"prompt": "The harbour lay still, and", "max_tokens": 60, "temperature": 0.9, "seed": 3,
           "ignore_eos": True}


class Described(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        cls.expected, = answers_of_one_process(PROGRAM, MODEL, [REQUEST])

    def setUp(self):
        super().setUp()
        self.serve("--max-num-seqs", 7, "--max-num-batched-tokens", 96)
        self.far = Link(int(self.joins.rpartition(":")[2]))
        self.far.delay_s = FAR_S
        self.addCleanup(self.far.close)

    def describe(self):
        return self.run_ok("cluster", "describe", "--base-url", self.url)

    def assert_controller_links(self, text):
        """They were measured, are those that the workers have, and are in the file."""
        links = {(link["from"], link["to"]): link for link in self.server.status()["links"]}
        self.assertEqual(sorted(links), [("a", "coordinator"), ("b", "coordinator"),
                                         ("coordinator", "a"), ("coordinator", "b")])
        for (source, target), link in links.items():
            if "b" in (source, target):
                self.assertTrue(FAR_S < link["latency_s"] < 3 * FAR_S, link)
                self.assertTrue(1e5 < link["bytes_per_s"] < 2 * LINK_BYTES / FAR_S, link)
            else:
                self.assertTrue(1e-6 < link["latency_s"] < FAR_S, link)
                self.assertTrue(2 * LINK_BYTES / FAR_S < link["bytes_per_s"] < 1e12, link)
            self.assertTrue(0 <= link["age_s"] < START_LIMIT_S, link)
            pair = re.search(r"# measured \d+ s ago\n    - \{nodes: \[\"%s\", \"%s\"\], "
                             r"bandwidth: (\S+) Mbit/s, latency: (\S+) us, one_way: true\}"
                             % (source, target), text)
            self.assertIsNotNone(pair, text)
            for written, measured in ((float(pair[1]), link["bytes_per_s"] * 8 / 1e6),
                                      (float(pair[2]), link["latency_s"] * 1e6)):
                self.assertAlmostEqual(written / measured, 1, delta=0.01)

    def test_from_join_to_a_plan_in_force(self):
        cache = self.folder / "cache"
        self.join("a", "--zone", "east", "--price", "0.12 USD/h", "--measure-profile",
                  "--profile-cache", cache)
        self.join("b", "--zone", "west", "--spot", "--measure-profile", "--profile-cache", cache,
                  over=f"127.0.0.1:{self.far.port}")
        self.server.wait_until_ready()
        # Profiles come after the joins, links while no request runs.
        text = self.run_ok("cluster", "describe", "--base-url", self.url, "--wait", START_LIMIT_S)
        self.assertEqual((text.count("\n    profile: "), text.count("# measured ")), (2, 6), text)
        self.assert_controller_links(text)
        status = self.server.status()
        counted = status["counters"]
        self.assertGreaterEqual(counted["links_probed"], 6)
        self.assertEqual((counted["probes_failed"], counted["profiles_refused"]), (0, 0))
        shown = self.run_ok("status", "--base-url", self.url)
        link = r"\d+\.\d+ ms, \d+ Mbit/s, \d+ s ago "
        self.assertRegex(
            shown, r"\na +east +\S+ GiB +1 +0\.12 USD/h +no +\d+ tok/s +\d+ tok/s +" + link)
        self.assertRegex(shown, r"\nb +west +\S+ GiB +1 +- +yes +\d+ tok/s +\d+ tok/s +" + link)

        file = self.folder / "cluster.yaml"
        file.write_text(self.describe())
        self.assertRegex(file.read_text(), r'name: "a"\n    region: "east"\n')
        self.assertIn("    price: 0.12 USD/h\n", file.read_text())
        self.assertIn("    # its price is not known\n    spot: true\n", file.read_text())
        plan = self.folder / "plan.yaml"
        said = self.run_ok("plan", "--cluster", file, "--model", MODEL, "--time-limit", "2",
                           "--out", plan)
        self.assertIn("2 of 2 nodes measured (as the cluster says)", said)
        steps = r"\n  steps of at most {0} tokens \({1}\) and 7 sequences \({1}\)\n"
        self.assertRegex(said, steps.format(96, re.escape(str(file))))
        live = self.run_ok("plan", "--live", self.url, "--model", MODEL, "--time-limit", "2",
                           "--json")
        self.assertEqual(json.loads(live)["unused"], [])
        said = self.run_ok("plan", "--live", self.url, "--model", MODEL, "--time-limit", "1",
                           "--max-num-batched-tokens", "64")
        self.assertIn("\n  steps of at most 64 tokens (--max-num-batched-tokens) and 7 sequences "
                      "(the running server)\n", said)
        self.run_ok("plan", "apply", plan, "--base-url", self.url)
        self.assertEqual(self.server.stream(REQUEST)[0], self.expected)

    def test_workers_that_say_nothing_are_described_too(self):
        self.join("quiet", "--no-measure-profile", "--profile-cache", self.folder / "none")
        self.server.wait_until_ready()
        text = self.describe()
        self.assertIn("# no profile: ", text)
        self.assertNotIn("region", text.replace("within_region", ""))
        done = run(PROGRAM, "cluster", "describe", "--base-url", self.url, "--wait", "1", status=1)
        self.assertEqual(done.stdout, "", done.stderr)
        self.assertRegex(done.stderr, "(?m)^waiting: no profile of quiet")
        self.assertRegex(done.stderr, "after 1 s: no profile of quiet.*leave out --wait")
        file = self.folder / "cluster.yaml"
        self.run_ok("cluster", "describe", "--base-url", self.url, "--out", file)
        self.assertEqual(file.read_text(), text)
        done = run(PROGRAM, "plan", "--cluster", file, "--model", MODEL, status=1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("node 'quiet'", done.stderr)

    def test_a_profile_of_another_model_is_refused_at_the_start(self):
        profile = self.folder / "profile.json"
        self.run_ok("profile", MODEL, "--max-tokens", "128", "--max-num-seqs", "8", "--max-context",
                    "256", "--repeats", "1", "--output", profile)
        good = json.loads(profile.read_text())
        for wrong, words in ((good | {"model": good["model"] | {"num_layers": 5}}, "5 layers"),
                             (good | {"step": good["step"] | {"fixed_s": -1}}, "fixed_s"),
                             (good | {"layers": good["layers"] | {
                                 "fixed_s": 0, "token_s": [0] * len(good["layers"]["token_s"]),
                                 "sequence_s": [0], "decode_context_s": 0}}, "takes 0 s")):
            profile.write_text(json.dumps(wrong))
            with self.subTest(words):
                worker = self.join("wrong", "--profile", profile)
                worker.process.wait(START_LIMIT_S)
                said = [line for line in worker.lines if re.match("millrace worker:", line)]
                self.assertEqual(len(said), 1, worker.lines)
                self.assertIn(words, said[0])
                self.assertIn("--profile", said[0])
        self.assertEqual(self.server.status()["workers"], [])


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    unittest.main(verbosity=2)
