#!/usr/bin/env python3
"""The simulator against the machine it simulates.

usage: bench/predict.py BUILD_DIR [--models DIR] [--seconds S] [--rounds N] [--keep DIR] [--lock FILE]

Method: a server with 2 threads on the llama-160m shape (bf16, random weights) gets Poisson traces at 30,
60 and 90 % of the rate it reached when all requests came at once, from `millrace bench serve` on the
same two cores. Before and after each trace `millrace profile` measures the machine, whose speed drifts by
a third within minutes where others share it; `millrace simulate` is given either profile and the same
trace, and the mean of the two is the forecast. Each load is served in several rounds with a trace each; a
figure is the mean over the rounds, of the served and of the simulated alike. Prompts are uniform in [64,
192] tokens, outputs in [32, 96]. Nothing is fitted to the served runs: step times, their unevenness and
what serving adds come from the profiles. Only the loopback interface is used.
"""
import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from server import Server  # noqa: E402

LOADS = (0.3, 0.6, 0.9)
BARS = {"p50": 0.10, "p99": 0.20}
SEEDS = 20  # moments of the profile from which its pace is replayed
QUIET_SHARE, QUIET_TRIES = 0.04, 120  # of both cores, taken by others within a second


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
                    "--temperature", "0", "--output", profile], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def simulated(binary, model, profile, trace):
    output = subprocess.run(
        [binary, "simulate", "--model", model, "--profile", profile, "--workload", trace,
         "--max-model-len", "512", "--max-num-seqs", "128", "--kv-cache-memory", "256MiB",
         "--seeds", str(SEEDS), "--json", "--no-progress"],
        check=True, capture_output=True, text=True).stdout
    return json.loads(output)["runs"][0]


def busy_ticks():
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


@contextlib.contextmanager
def quiet(lock):
    """Alone on the machine, as far as others take the lock; waits until its cores are idle."""
    if lock is None:
        yield
        return
    while True:
        with open(lock, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for _ in range(20):
                busy, total = busy_ticks()
                time.sleep(1)
                now_busy, now_total = busy_ticks()
                if now_busy - busy <= QUIET_SHARE * (now_total - total):
                    yield
                    return
        time.sleep(20)  # let others get on


def serve_round(args, binary, model, capacity, load, round_number, folder):
    """What one trace gave, and the two profiles around it."""
    trace = folder / "trace.jsonl"
    count = max(20, round(load * capacity * args.seconds))
    make_trace(trace, load * capacity, count, round(load * 10) + 100 * round_number)
    profiles = [str(folder / "before.json"), str(folder / "after.json")]
    with quiet(args.lock):
        measure(binary, model, profiles[0])
        server = Server(binary, model, ["--no-enable-prefix-caching", "--step-log",
                                        str(folder / "steps.jsonl")])
        try:
            live = served(binary, server.url, str(trace), count)
        finally:
            server.stop()
        measure(binary, model, profiles[1])
    (folder / "live.json").write_text(json.dumps(live))
    return count, live, [simulated(binary, model, p, str(trace)) for p in profiles]


def of_served(live, metric, point):
    return live.get(f"{point}_{metric}_ms", live.get(f"median_{metric}_ms"))


def print_rows(rows):
    print("| load | requests | what | served, ms | simulated, ms | off | bar |\n|---|---|---|---|---|---|---|")
    for load in LOADS:
        rounds = [row for row in rows if row[0] == load]
        count = sum(row[1] for row in rounds)
        for metric in ("ttft", "tpot"):
            for point, bar in BARS.items():
                real = sum(of_served(live, metric, point) for _, _, live, _ in rounds) / len(rounds)
                ours = [run[f"{metric}_ms"][point] for _, _, _, runs in rounds for run in runs]
                off = sum(ours) / len(ours) / real - 1
                print(f"| {load:.0%} | {count} | {metric.upper()} {point} | {real:.1f} | "
                      f"{sum(ours) / len(ours):.1f} | {off:+.1%} | "
                      f"{bar:.0%}{'' if abs(off) <= bar else ', **missed**'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--models", default="/tmp/millrace-bench")
    parser.add_argument("--seconds", type=float, default=45, help="length of each trace")
    parser.add_argument("--rounds", type=int, default=2, help="traces per load")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for profiles, traces and step logs")
    parser.add_argument("--lock", help="file to lock while measuring")
    args = parser.parse_args()
    binary, model = str(args.build / "millrace"), f"{args.models}/llama-160m"
    if not os.path.isdir(model):
        subprocess.run([binary, "make-model", "--shape", "llama-160m", "--seed", "0", model], check=True)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        keep = args.keep or pathlib.Path(temporary)
        keep.mkdir(parents=True, exist_ok=True)
        make_trace(keep / "capacity.jsonl", None, 96, 0)
        with quiet(args.lock):
            server = Server(binary, model, ["--no-enable-prefix-caching"])
            try:
                capacity = served(binary, server.url, str(keep / "capacity.jsonl"), 96)
            finally:
                server.stop()
        capacity = capacity["request_throughput"]
        print(f"Capacity: {capacity:.2f} requests/s.\n", flush=True)
        for round_number in range(args.rounds):
            for load in LOADS:
                folder = keep / f"{round(100 * load)}-{round_number}"
                folder.mkdir(exist_ok=True)
                rows.append((load, *serve_round(args, binary, model, capacity, load, round_number,
                                                folder)))
                print(f"round {round_number + 1}, load {load:.0%} done", file=sys.stderr, flush=True)
    print(__doc__.split("\n\n")[2].replace("\n", " ") + "\n")
    print_rows(rows)


if __name__ == "__main__":
    main()
