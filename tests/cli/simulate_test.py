#!/usr/bin/env python3
"""Runs `millrace simulate` as a user would, and every command of docs/simulation.md.

Usage: simulate_test.py PROGRAM [unittest arguments]
"""
import csv
import json
import pathlib
import re
import shlex
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import processes  # noqa: E402
from harness.cases import DEMO, ROOT, FolderTest, take_paths  # noqa: E402

PROGRAM, = take_paths(1)
TIMEOUT_S = 240
PROFILE = str(ROOT / "src/cost/testdata/distserve/profiler-a100-80g.distserve.json")
OPT = ["--model", "opt-13b", "--distserve-profile", PROFILE, "--input-len", "512", "--output-len", "32"]


def run(*args, cwd=ROOT):
    return processes.run(PROGRAM, "simulate", *args, limit_s=TIMEOUT_S, cwd=cwd).stdout


def refused(*args):
    """What it says to stderr."""
    return processes.run(PROGRAM, "simulate", *args, limit_s=TIMEOUT_S, status=1).stderr


def run_json(*args, **kwargs):
    return json.loads(run(*args, "--json", **kwargs))


class Simulate(FolderTest):
    def test_a_seed_prints_the_same_bytes(self):
        args = [*OPT, "--rate", "4", "--num-requests", "500", "--slo", "ttft=200ms", "tpot=100ms",
                "--instances", "2", "--dispatch", "random"]
        files = []
        for name in ("one", "two"):
            (self.folder / name).mkdir()
            out = run(*args, "--json", "--seed", "7", "--plot", str(self.folder / name),
                      "--trace", str(self.folder / name / "trace.json"))
            files.append([out] + [f.read_bytes() for f in sorted((self.folder / name).iterdir())])
        self.assertEqual(files[0], files[1])
        self.assertNotEqual(files[0][0], run(*args, "--json", "--seed", "8"))

    def test_latency_is_that_of_the_profile(self):
        # One request at a time: the fitted prefill of 512 tokens, and decodes of one.
        fit = json.loads(pathlib.Path(PROFILE).read_text())
        a, b, c = fit["facebook/opt-13b"]["1"]["prefill"]
        report = run_json(*OPT, "--rate", "0.01", "--num-requests", "200")["runs"][0]
        self.assertAlmostEqual(report["ttft_ms"]["mean"], a + b * 512 + c * 512 * 512, delta=0.2)
        self.assertEqual(report["requests"], 200)
        self.assertEqual(report["output_tokens"], 6400)
        self.assertFalse(report["saturated"])

    def test_too_much_is_called_saturated(self):
        report = run_json(*OPT, "--rate", "40", "--num-requests", "2000")["runs"][0]
        self.assertTrue(report["saturated"])
        self.assertIsNone(report["ttft_ms"])
        self.assertLess(report["requests_per_s"], 20)
        text = run(*OPT, "--rate", "40", "--num-requests", "2000")
        self.assertIn("SATURATED", text)

    def test_goodput_lies_between_kept_and_missed(self):
        args = [*OPT, "--rate", "1", "--num-requests", "1000", "--slo", "ttft=200ms", "tpot=100ms"]
        goodput = run_json(*args, "--goodput", "--seeds", "2")["goodput"]
        self.assertEqual(len(goodput["per_seed"]), 2)
        self.assertGreater(goodput["rate"], 2)
        kept = [t["rate"] for t in goodput["trials"] if t["kept"] and t["seed"] == 0]
        missed = [t["rate"] for t in goodput["trials"] if not t["kept"] and t["seed"] == 0]
        self.assertEqual(max(kept), goodput["per_seed"][0])
        self.assertLess(min(missed), max(kept) * 1.03)

    def test_files_of_several_rates(self):
        run(*OPT, "--rate", "4,1,2", "--num-requests", "300", "--slo", "ttft=200ms", "--csv",
            str(self.folder / "rates.csv"), "--plot", str(self.folder / "plots"))
        with open(self.folder / "rates.csv", encoding="utf8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([r["rate"] for r in rows], ["1", "2", "4"])
        self.assertGreater(float(rows[2]["ttft_p99_ms"]), float(rows[0]["ttft_p99_ms"]))
        names = {f.name for f in (self.folder / "plots").iterdir()}
        self.assertEqual(names, {"latency_cdf.svg", "queue.svg", "timeline.svg",
                                 "latency_rate.svg", "attainment_rate.svg"})
        for file in (self.folder / "plots").iterdir():
            xml.etree.ElementTree.parse(file)

    def test_orders_that_the_papers_found(self):
        """Static batching is slower than iterations; reserving whole answers holds fewer requests."""
        args = ["--model", "opt-13b", "--device", "a100-80gb", "--rate", "3", "--input-len", "256",
                "--output-len", "256", "--num-requests", "600"]
        ours = run_json(*args)["runs"][0]
        static = run_json(*args, "--scheduling", "static", "--max-num-seqs", "16")["runs"][0]
        self.assertLess(ours["e2e_ms"]["mean"] * 2, static["e2e_ms"]["mean"])
        short = ["--num-gpu-blocks-override", "512", "--rate", "6"]
        paged = run_json(*args, *short)["runs"][0]
        orca = run_json(*args, *short, "--kv-policy", "orca-max")["runs"][0]
        self.assertGreater(paged["output_tokens_per_s"], orca["output_tokens_per_s"] * 1.5)

    def test_prefill_and_decode_apart(self):
        args = [*OPT, "--rate", "8", "--num-requests", "1000"]
        apart = ["--prefill-instances", "1", "--decode-instances", "1"]
        self.assertIn("give --kv-bandwidth GB/S", refused(*args, *apart))
        report = run_json(*args, *apart, "--kv-bandwidth", "25")["runs"][0]
        together = run_json(*args, "--instances", "2")["runs"][0]
        self.assertEqual(report["requests"], 1000)
        self.assertGreater(report["kv_transfer_ms"]["mean"], 1)
        self.assertLess(report["tpot_ms"]["p99"], together["tpot_ms"]["p99"])

    def test_prompts_that_share_a_prefix(self):
        trace = self.folder / "shared.csv"
        rows = ["arrival_s,prompt_tokens,output_tokens,prefix_id,prefix_tokens",
                "0,320,4,7,160", "5,320,4,7,160", "10,320,4,,", "15,320,4,7,160", "20,320,4,8,160"]
        trace.write_text("\n".join(rows))
        args = ["--model", "opt-13b", "--device", "a100-80gb", "--workload", str(trace)]
        report = run_json(*args)["runs"][0]
        self.assertEqual((report["prefix_query_tokens"], report["prefix_hit_tokens"]), (1600, 320))
        self.assertEqual(report["prefix_hit_rate"], 0.2)
        self.assertIn("Prefix cache: 20.00 % of 1,600 prompt tokens found", run(*args))
        cold = run_json(*args, "--no-enable-prefix-caching")["runs"][0]
        self.assertIsNone(cold["prefix_hit_rate"])
        self.assertLess(report["ttft_ms"]["mean"], cold["ttft_ms"]["mean"])
        for words, sentence in (
                (["--workload", str(trace)], "shared.csv: line 6: prefix_tokens must be in [1, 320]"),
                (["--rate", "1", "--input-len", "5", "--output-len", "5",
                  "--no-enable-prefix-caching"], "is for prompts that share prefixes")):
            trace.write_text("\n".join(rows).replace("8,160", "8,321"))
            said = refused(*args[:4], *words)
            self.assertEqual(said.count("\n"), 1, said)
            self.assertIn(sentence, said)

    def test_machines_that_come_and_go(self):
        trace = self.folder / "spot.csv"
        trace.write_text("0,add,a\n0,add,b\n20000,remove,b\n40000,add,c\n")
        args = ["--model", "opt-13b", "--device", "a100-80gb", "--rate", "6", "--input-len", "256",
                "--output-len", "128", "--num-requests", "600", "--kv-bandwidth", "25", "--availability", str(trace)]
        moved = run_json(*args, "--notice", "5")["runs"][0]
        self.assertEqual(moved["output_tokens"], 600 * 128)
        fleet = moved["membership"]
        self.assertEqual((fleet["came"], fleet["lost"], fleet["replayed"]), (1, 1, 0))
        self.assertGreater(fleet["moved"], 0)
        at_once = run_json(*args, "--notice", "0")["runs"][0]
        self.assertEqual(at_once["output_tokens"], 600 * 128)
        self.assertGreater(at_once["membership"]["replayed"], 0)
        self.assertEqual(at_once["membership"]["moved"], 0)
        always = run_json(*args[:-4], "--instances", "2")["runs"][0]
        self.assertIsNone(always["membership"])
        self.assertLess(moved["usd_per_hour"], always["usd_per_hour"])
        self.assertIn("1 added, 1 lost", run(*args))
        trace.write_text("5000,add,a\n9000,remove,a\n")
        self.assertIn("requests were refused: until the trace of --availability ended", refused(*args))

    def test_the_autopilot_uses_a_machine_that_joins(self):
        (self.folder / "cluster.yaml").write_text("""
name: pair
nodes: [{name: a, count: 2, device: a100-80gb, memory: 80 GB, price: 4 USD/h}]
links: {within_region: {bandwidth: 100 Gbit/s, latency: 0.1 ms}}
""")
        (self.folder / "work.yaml").write_text("""
rate: 1 req/s
arrivals: poisson
lengths: {prompt: 500 tokens, output: 60 tokens}
phases: [{duration: 40 s}, {duration: 110 s, rate: 16 req/s}]
slo: {ttft: 2 s, tpot: 100 ms}
""")
        (self.folder / "spot.csv").write_text("0,add,one\n50000,add,two\n")
        args = ["--cluster", "cluster.yaml", "--model", "opt-13b", "--workload", "work.yaml",
                "--availability", "spot.csv", "--load-time", "5"]

        def kinds(mode):
            report = run_json(*args, "--autopilot", mode, cwd=self.folder)["runs"][0]
            self.assertEqual(report["refused"], 0)
            return report, [(d["decision"], d["cause"]) for d in report["decisions"]]

        acted, decided = kinds("act")
        self.assertIn(("change", "load shifted"), decided)
        both = next(d for d in acted["decisions"] if d["decision"] == "change")
        self.assertEqual(both["candidates"][0]["shape"], "a-0 0-39, a-1 0-39")
        self.assertGreater(both["epoch"], 0)
        advised, decided = kinds("advise")
        self.assertIn(("advise", "load shifted"), decided)
        self.assertGreater(acted["slo"]["attainment"], advised["slo"]["attainment"] + 0.2)
        text = run(*args, "--autopilot", "act", cwd=self.folder)
        self.assertRegex(text, r"\nDecisions of the autopilot\n +1  0:00:\d\d  \w+  \(")
        self.assertEqual(text, run(*args, "--autopilot", "act", cwd=self.folder))

    def test_documented_commands(self):
        text = (ROOT / "docs/simulation.md").read_text()
        planning = (ROOT / "docs/planning.md").read_text()
        for block in re.findall(r"^```(?:yaml|csv)\n# (\S+)\n(.*?)^```", planning + text, re.M | re.S):
            (self.folder / block[0]).write_text(block[1])
        processes.run(PROGRAM, "plan", "--cluster", "cluster.yaml", "--model", "llama-70b",
                      "--time-limit", "1", "--out", "plan.yaml", cwd=self.folder, limit_s=TIMEOUT_S)
        (self.folder / "src").symlink_to(ROOT / "src")
        commands = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
                    for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        self.assertGreater(len(commands), 5)
        for command in commands:
            words = shlex.split(command)
            self.assertEqual(words[:2], ["millrace", "simulate"])
            with self.subTest(command):
                self.assertIn("Throughput:", run(*words[2:], cwd=self.folder))
        json.loads((self.folder / "pipeline.json").read_text())


class Replay(FolderTest):
    """A live server, short of KV memory and under load, against the simulator's decisions."""

    def setUp(self):
        super().setUp()
        self.log = self.folder / "steps.jsonl"

    def record(self):
        server = processes.Server(
            PROGRAM, "serve", DEMO, "--step-log", self.log, "--num-gpu-blocks-override", "48",
            "--max-model-len", "512", "--max-num-seqs", "12")
        try:
            processes.run(
                PROGRAM, "bench", "serve", "--base-url", server.url, "--num-prompts", "120",
                "--request-rate", "60", "--random-input-len", "96", "--random-output-len", "48",
                "--random-range-ratio", "0.8", "--random-prefix-len", "40", "--disable-tqdm",
                limit_s=TIMEOUT_S)
        finally:
            server.stop()

    def test_a_live_run_is_decided_the_same_again(self):
        self.record()
        report = run_json("--replay", str(self.log))
        self.assertTrue(report["same"])
        self.assertGreaterEqual(report["requests"], 120)
        self.assertGreater(report["steps"], 100)
        lines = self.log.read_text().splitlines()
        at = next(i for i, line in enumerate(lines) if i > len(lines) // 2 and '"parts"' in line)
        step = json.loads(lines[at])
        step["parts"][0][2] += 1
        lines[at] = json.dumps(step)
        self.log.write_text("\n".join(lines))
        self.assertIn(f"step {step['step']}", refused("--replay", self.log))


if __name__ == "__main__":
    unittest.main()
