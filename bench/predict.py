#!/usr/bin/env python3
"""The simulator against the machine it simulates.

usage: bench/predict.py BUILD_DIR [--models DIR] [--seconds S]

Method: one server with 2 threads on the llama-160m shape (bf16, random weights) gets three Poisson
traces, at 30, 60 and 90 % of the rate it reached when all requests came at once, from `millrace bench
serve` on the same two cores. Before and after each trace `millrace profile` measures the machine, whose
arithmetic speed drifts by a third within minutes where others share it; `millrace simulate` is given
either profile and the same trace, and the mean of the two is the forecast. Prompts are uniform in [64,
192] tokens, outputs in [32, 96]. Nothing is fitted to the served runs. Only the loopback interface is
used.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from server import Server  # noqa: E402

LOADS = (0.3, 0.6, 0.9)
BARS = {"p50": 0.10, "p99": 0.20}


def make_trace(path, rate, count, seed):
    """Requests with Poisson arrivals at `rate` per second; all at once without one."""
    draw = random.Random(seed)
    at = 0.0
    lines = []
    for i in range(count):
        prompt, output = draw.randint(64, 192), draw.randint(32, 96)
        lines.append(json.dumps({"timestamp": at * 1e3, "input_length": prompt,
                                 "output_length": output, "hash_ids": [i]}))
        at += draw.expovariate(rate) if rate else 0.0
    path.write_text("\n".join(lines) + "\n")


def served(binary, url, trace, count):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [binary, "bench", "serve", "--base-url", url, "--model", "bench", "--dataset-name", "trace",
             "--dataset-path", trace, "--num-prompts", str(count), "--ignore-eos", "--save-result",
             "--result-dir", folder, "--result-filename", "r.json", "--metric-percentiles", "50,99",
             "--disable-tqdm"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.loads((pathlib.Path(folder) / "r.json").read_text())
    if result["completed"] != count:
        raise SystemExit(f"{result['failed']} of {count} requests failed")
    return result


def measure(binary, model, profile):
    subprocess.run([binary, "profile", model, "--threads", "2", "--max-tokens", "512", "--repeats", "3",
                    "--output", profile], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def simulated(binary, model, profile, trace):
    output = subprocess.run(
        [binary, "simulate", "--model", model, "--profile", profile, "--workload", trace,
         "--max-model-len", "512", "--kv-cache-memory", "256MiB", "--json", "--no-progress"],
        check=True, capture_output=True, text=True).stdout
    return json.loads(output)["runs"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--models", default="/tmp/millrace-bench")
    parser.add_argument("--seconds", type=float, default=60, help="length of each trace")
    args = parser.parse_args()
    binary, model = str(args.build / "millrace"), f"{args.models}/llama-160m"
    if not os.path.isdir(model):
        subprocess.run([binary, "make-model", "--shape", "llama-160m", "--seed", "0", model], check=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        profiles, trace = [str(folder / "before.json"), str(folder / "after.json")], folder / "t.jsonl"
        server = Server(binary, model)
        try:
            make_trace(trace, None, 96, 0)
            capacity = served(binary, server.url, str(trace), 96)["request_throughput"]
            for load in LOADS:
                count = max(20, round(load * capacity * args.seconds))
                make_trace(trace, load * capacity, count, round(load * 10))
                measure(binary, model, profiles[0])
                live = served(binary, server.url, str(trace), count)
                measure(binary, model, profiles[1])
                rows.append((load, count, live,
                             [simulated(binary, model, p, str(trace)) for p in profiles]))
        finally:
            server.stop()
    print(__doc__.split("\n\n")[2].replace("\n", " "))
    print(f"\nCapacity: {capacity:.2f} requests/s.\n")
    print("| load | requests | what | served, ms | simulated, ms | off | bar |\n|---|---|---|---|---|---|---|")
    for load, count, live, runs in rows:
        for metric in ("ttft", "tpot"):
            for point, bar in BARS.items():
                real = live[f"{point}_{metric}_ms"] if f"{point}_{metric}_ms" in live \
                    else live[f"median_{metric}_ms"]
                ours = sum(run[f"{metric}_ms"][point] for run in runs) / len(runs)
                off = ours / real - 1
                print(f"| {load:.0%} | {count} | {metric.upper()} {point} | {real:.1f} | {ours:.1f} | "
                      f"{off:+.1%} | {bar:.0%}{'' if abs(off) <= bar else ', **missed**'} |")


if __name__ == "__main__":
    main()
