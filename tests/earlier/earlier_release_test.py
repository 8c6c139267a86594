#!/usr/bin/env python3
"""What an earlier release wrote is read by this one: journals, step logs, plans, profiles, cluster files.

Usage: earlier_release_test.py PROGRAM MODEL
"""
import json
import pathlib
import shutil
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from harness.cases import FolderTest, take_paths  # noqa: E402
from harness.http import objects, send  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import Process, Server, make_token, run  # noqa: E402

PROGRAM, MODEL = take_paths(2)
OLD = HERE / "0.2.0"
CLUSTER = ("--cluster", OLD / "cluster.yaml", "--model", "llama-70b")


class FilesOf020(FolderTest):
    def test_a_cluster_file_is_planned_for(self):
        run(PROGRAM, "plan", *CLUSTER, "--time-limit", "1", "--out", self.folder / "plan.yaml")
        new, old = (path.read_text() for path in (self.folder / "plan.yaml", OLD / "plan.yaml"))
        fingerprint = next(line for line in old.splitlines() if "fingerprint" in line)
        self.assertIn(fingerprint, new, "the cluster is another one than it was")

    def test_a_plan_is_sound_and_can_be_simulated(self):
        run(PROGRAM, "plan", "check", OLD / "plan.yaml", *CLUSTER)
        report = json.loads(run(PROGRAM, "simulate", "--plan", OLD / "plan.yaml", *CLUSTER, "--rate", "0.2",
                                "--num-requests", "20", "--input-len", "100", "--output-len", "20",
                                "--json").stdout)
        self.assertEqual(report["runs"][0]["requests"], 20)

    def test_a_profile_is_simulated_with(self):
        report = json.loads(run(PROGRAM, "simulate", "--model", MODEL, "--profile", OLD / "profile.json", "--rate",
                                "2", "--num-requests", "20", "--input-len", "64", "--output-len", "8",
                                "--num-gpu-blocks-override", "1000", "--json").stdout)
        self.assertEqual(report["runs"][0]["requests"], 20)

    def test_a_step_log_is_replayed(self):
        log = OLD / "steps.jsonl"
        recorded = sum("parts" in json.loads(line) for line in log.read_text().splitlines())
        shown = run(PROGRAM, "simulate", "--replay", log).stdout
        self.assertIn(f"{recorded} steps", shown)

    def test_the_streams_of_a_journal_go_on(self):
        """A stream that ran when its controller died has what its client had got, and ends. Its tokens
        were computed with other bits than this release has."""
        shutil.copytree(OLD / "journal", self.folder / "journal")
        before = json.loads((OLD / "stream.json").read_text())
        joins, token = f"127.0.0.1:{free_port()}", make_token(PROGRAM, self.folder)
        server = Server(PROGRAM, "serve", MODEL, "--cluster", f"sqlite:{self.folder}/state", "--journal",
                        self.folder / "journal", "--listen", joins, "--token", token, "--resume-grace", "60",
                        "--cross-class-replay")
        self.addCleanup(server.stop)
        worker = Process(PROGRAM, "worker", MODEL, "--join", joins, "--token", token, "--threads", "1",
                         "--no-measure-profile")
        self.addCleanup(worker.stop)
        server.wait_until_ready()
        texts = ["", ""]
        with server.connect() as connection:
            for event in objects(send(connection, "GET", f"/v1/streams/{before['stream']}")):
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["text"]
        for text, had in zip(texts, before["texts"]):
            self.assertTrue(text.startswith(had), f"{had!r} became {text!r}")
            self.assertGreater(len(text), len(had), "it did not go on")


if __name__ == "__main__":
    unittest.main(verbosity=2)
