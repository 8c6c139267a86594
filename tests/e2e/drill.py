#!/usr/bin/env python3
"""`millrace drill` for real: every step with few streams, the commands of the pages, an interruption,
and what it refuses. It must leave nothing behind: no process, no file.

Usage: drill.py PROGRAM SOURCE_DIR [unittest arguments]
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import FolderTest, take_paths  # noqa: E402
from harness.proc import mentioning  # noqa: E402

PROGRAM, SOURCE = take_paths(2)
SOURCE = pathlib.Path(SOURCE)
LIMIT_S = 280
STEPS = ["notice", "withdrawn", "kill", "controller"]


class Drill(FolderTest):
    def setUp(self):
        super().setUp()
        for name in ("tmp", "run"):
            (self.folder / name).mkdir(mode=0o700)
        self.environment = {**os.environ, "TMPDIR": str(self.folder / "tmp"),
                            "XDG_RUNTIME_DIR": str(self.folder / "run"), "NO_COLOR": "1"}

    def start(self, *words):
        return subprocess.Popen([PROGRAM, *map(str, words)], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, cwd=SOURCE, env=self.environment)

    def drill(self, *words, status=0):
        process = self.start("drill", *words)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
        self.assertEqual(process.returncode, status, out + err)
        return out, err

    def expect_nothing_left(self):
        self.assertEqual(list((self.folder / "tmp").iterdir()), [])
        self.assertEqual(list((self.folder / "run").rglob("*.sock")), [])
        self.assertEqual(mentioning(str(self.folder)), [])

    def test_every_step(self):
        out, told = self.drill("--streams", 4, "--tokens", 300, "--json")
        report = json.loads(out)
        self.assertTrue(report["passed"])
        self.assertEqual((report["different"], report["lost"]), (0, 0))
        self.assertEqual(report["identical"], report["answers"])
        self.assertEqual(report["tokens"], 300 * report["answers"])
        steps = {step["step"]: step for step in report["steps"]}
        self.assertEqual(list(steps), STEPS)
        for name, step in steps.items():
            self.assertGreater(step["streams"], 0, name)
            self.assertGreater(step["longest_silence_s"], 0, name)
        # What the notice is for: requests finish or move, so that less is computed again.
        self.assertGreater(steps["notice"]["finished_there"] + steps["notice"]["moves"], 0, told)
        self.assertLessEqual(steps["notice"]["recomputed_tokens"],
                             steps["kill"]["recomputed_tokens"], told)
        self.assertGreater(steps["kill"]["replays"], 0, told)
        self.assertGreater(steps["controller"]["recomputed_tokens"], 0, told)
        self.assertGreater(sum(stream["resumed"] for stream in report["streams"]), 0, told)
        self.assertEqual([stream["sampling"] for stream in report["streams"]],
                         ["greedy", "seeded"] * 2)
        self.assertIn("gets a notice: its machine goes away in 20 s", told)
        self.expect_nothing_left()

    def test_interrupted(self):
        process = self.start("drill", "--streams", 2)
        line = ""
        while "streams run" not in line:
            line = process.stdout.readline()
            self.assertTrue(line, "it ended")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertEqual(err, "millrace drill: interrupted; all processes have been stopped\n")
        self.expect_nothing_left()

    def test_keeps_the_log(self):
        out, _ = self.drill("--only", "kill", "--streams", 2, "--workers", 2, "--keep")
        path = pathlib.Path(re.search(r"the log of all processes: (\S+)", out).group(1))
        self.assertIn("worker-0: ", path.read_text())
        self.assertRegex(out, r"\nkill +\d+\.\d\d s ")
        self.assertRegex(out, r"All \d+ answers with [\d,]+ tokens are the same, to the byte")

    def test_refusals(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            _, err = self.drill("--port", port, "--streams", 1, status=1)
            self.assertIn(f"--port: cannot listen on 127.0.0.1:{port}: the port is in use; choose "
                          "another one", err)
        config = json.loads((SOURCE / "models/demo/config.json").read_text())
        large = self.folder / "large"
        large.mkdir()
        (large / "config.json").write_text(json.dumps(
            {**config, "hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 120,
             "num_attention_heads": 128, "num_key_value_heads": 128, "head_dim": 128}))
        _, err = self.drill(large, status=1)
        self.assertRegex(err, r"3 workers of this model need about .*iB, and .*iB is free .*: "
                              r"give fewer --workers or --streams, or a smaller model")
        _, err = self.drill("--tokens", 1000, status=1)
        self.assertIn("exceed the model's context of 1024: give at most 960", err)
        self.expect_nothing_left()

    def test_the_commands_of_the_pages(self):
        """Those of docs/spot.md and docs/cli.md, with fewer streams where they are the same."""
        lines = []
        for page in ("spot.md", "cli.md"):
            lines += re.findall(r"^millrace drill.*$", (SOURCE / "docs" / page).read_text(), re.M)
        self.assertIn("millrace drill", lines)
        for line in dict.fromkeys(lines):
            began = time.monotonic()
            self.drill(*line.split(">")[0].split()[2:])
            print(f"{line}: {time.monotonic() - began:.0f} s", flush=True)
        self.expect_nothing_left()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
