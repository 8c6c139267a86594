#!/usr/bin/env python3
"""Compares the simulator with the machine that it simulates.

usage: bench/predict.py BUILD_DIR [--models DIR] [--seconds S] [--parts N] [--servings N] [--keep DIR]
                         [--lock FILE] [--capacity R]

Method: a server with 2 threads on the llama-160m shape (bf16, random weights) gets Poisson traces at 30,
60 and 90 % of its capacity, from `millrace bench serve` on the same two cores. Capacity is the rate
reached when all requests arrive at once, the median of five bursts. The speed of a shared machine drifts by
a third within seconds, so `millrace profile` and the server take turns: two rounds over the profile's
batches, a part of the trace, the next two rounds. `millrace simulate` gets that profile and the same parts.
One serving consists of all parts; its figures cover their requests. Each load is served several times, 60
and 90 % most often. The result is the median of the servings' ratios, each between neighbours. A serving
during which other programs took more than 4 % of the processors is repeated. Prompts are uniform in
[64, 192] tokens, outputs in [32, 96]. Nothing is fitted to the served runs: step times, their variation
and the overhead of serving come from the profiles. Only the loopback interface is used.
"""
import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from server import Server, made_model, processes  # noqa: E402

SERVINGS = {0.3: 3, 0.6: 9, 0.9: 9}  # of each load; tails of a few hundred requests lie far apart
BURSTS, BURST_REQUESTS = 5, 96
BARS = {"p50": 0.10, "p99": 0.20}
SEEDS = 20  # moments of the profile from which its pace is replayed
OTHERS_MAX = 0.04  # of both cores
ROUNDS = 2  # over the profile's batches between two parts
PAUSE_LINE = "Pausing for "  # how a line begins with which `millrace profile` announces a rest
REST_S = 0.5  # after a round: long enough to stop the profile in
APART_MS = 60_000  # between the parts of the simulated trace, so that they do not overlap


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
        processes.run(
            binary, "bench", "serve", "--base-url", url, "--model", "bench", "--dataset-name", "trace",
            "--dataset-path", trace, "--num-prompts", count, "--ignore-eos", "--save-result",
            "--save-detailed", "--result-dir", folder, "--result-filename", "r.json", "--disable-tqdm",
            limit_s=None)
        result = json.loads((pathlib.Path(folder) / "r.json").read_text())
    if result["completed"] != count:
        raise SystemExit(f"{result['failed']} of {count} requests failed")
    return {"request_throughput": result["request_throughput"], "ttft": result["ttfts"],
            "tpot": [sum(itls) / len(itls) for itls in result["itls"]]}


def simulated(binary, model, profile, trace):
    output = processes.run(
        binary, "simulate", "--model", model, "--profile", profile, "--workload", trace,
        "--max-model-len", "512", "--max-num-seqs", "128", "--kv-cache-memory", "256MiB",
        "--no-enable-prefix-caching", "--seeds", SEEDS, "--json", "--no-progress", limit_s=None).stdout
    return json.loads(output)["runs"][0]


class Processors:
    """Measures the processor share of other programs between creation and others()."""

    def __init__(self):
        self.busy, self.total = self._ticks()
        self.own = self._own()

    @staticmethod
    def _ticks():
        fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4], sum(fields)

    @staticmethod
    def _own():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (used.ru_utime + used.ru_stime) * os.sysconf("SC_CLK_TCK")

    def others(self):
        """REQUIRES: every child that ran meanwhile has been waited for."""
        busy, total = self._ticks()
        return (busy - self.busy - (self._own() - self.own)) / (total - self.total)


def serve_in_turns(args, binary, model, parts, folder):
    """Profiles and serves in turns; returns the served times and the others' processor share.

    The profile pauses after each round. After the first round, and then every ROUNDS, it is
    stopped until a part has been served.
    """
    processors = Processors()
    server = Server(binary, model, ["--no-enable-prefix-caching", "--step-log",
                                    str(folder / "steps.jsonl")])
    live = {"ttft": [], "tpot": []}
    profile = subprocess.Popen(
        [binary, "profile", model, "--threads", "2", "--max-tokens", "256", "--repeats",
         str(ROUNDS * len(parts) + 1), "--rest", str(REST_S), "--temperature", "0", "--output",
         str(folder / "profile.json")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    rests = 0
    try:
        for line in profile.stderr:
            if not line.startswith(PAUSE_LINE):
                continue
            rests += 1
            if (rests - 1) % ROUNDS:
                continue
            profile.send_signal(signal.SIGSTOP)
            trace, count = parts.pop(0)
            one = served(binary, server.url, str(trace), count)
            for metric, values in live.items():
                values += one[metric]
            profile.send_signal(signal.SIGCONT)
        if profile.wait() != 0:
            raise SystemExit(f"millrace profile left with {profile.returncode}")
        if parts:
            raise SystemExit(f"{len(parts)} parts were not served: millrace profile announced {rests} rests")
    finally:
        profile.kill()
        profile.wait()
        server.stop()
    return live, processors.others()


def measure_load(args, binary, model, rate, seed, folder):
    """Returns the results of a trace in parts, and its simulation."""
    parts, lines = [], []
    for part in range(args.parts):
        path, count = folder / f"part{part}.jsonl", max(4, round(rate * args.seconds))
        make_trace(path, rate, count, 100 * seed + part)
        parts.append((path, count))
        for line in path.read_text().splitlines():
            request = json.loads(line)
            request["timestamp"] += part * APART_MS
            lines.append(json.dumps(request))
    (folder / "all.jsonl").write_text("\n".join(lines) + "\n")
    while True:
        with quiet(args.lock):
            live, others = serve_in_turns(args, binary, model, list(parts), folder)
        if others <= OTHERS_MAX:
            break
        print(f"others took {others:.1%}: again", file=sys.stderr, flush=True)
        time.sleep(5)
    live["others"] = others
    (folder / "live.json").write_text(json.dumps(live))
    return live, simulated(binary, model, str(folder / "profile.json"), str(folder / "all.jsonl"))


@contextlib.contextmanager
def quiet(lock):
    """Holds the lock, so that other holders of it do not run meanwhile."""
    if lock is None:
        yield
        return
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def percentile(values, point):
    values = sorted(values)
    place = point / 100 * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def print_rows(rows):
    print("| load | requests | what | served, ms | simulated, ms | off | of each serving | bar |\n"
          "|---|---|---|---|---|---|---|---|")
    for load in SERVINGS:
        servings = [(live, run) for at, live, run in rows if at == load]
        if not servings:
            continue
        count = sum(len(live["ttft"]) for live, _ in servings)
        for metric in ("ttft", "tpot"):
            for point, bar in BARS.items():
                real = [percentile(live[metric], int(point[1:])) * 1e3 for live, _ in servings]
                ours = [run[f"{metric}_ms"][point] for _, run in servings]
                each = sorted(o / r - 1 for o, r in zip(ours, real))
                off = statistics.median(each)
                print(f"| {load:.0%} | {count} | {metric.upper()} {point} | {statistics.median(real):.1f} | "
                      f"{statistics.median(ours):.1f} | {off:+.1%} | {each[0]:+.1%} to {each[-1]:+.1%} | "
                      f"{bar:.0%}{'' if abs(off) <= bar else ', **missed**'} |")


def measure_capacity(args, binary, model, folder):
    """Requests per second when all come at once."""
    trace = folder / "capacity.jsonl"
    make_trace(trace, None, BURST_REQUESTS, 0)
    with quiet(args.lock):
        server = Server(binary, model, ["--no-enable-prefix-caching"])
        try:
            rates = [served(binary, server.url, str(trace), BURST_REQUESTS)["request_throughput"]
                     for _ in range(BURSTS)]
        finally:
            server.stop()
    print(f"Bursts: {', '.join(f'{rate:.2f}' for rate in rates)} requests/s.", flush=True)
    return statistics.median(rates)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--models", default="/tmp/millrace-bench")
    parser.add_argument("--seconds", type=float, default=6, help="length of each part of a trace")
    parser.add_argument("--parts", type=int, default=12, help="parts of a trace")
    parser.add_argument("--servings", type=int, default=max(SERVINGS.values()),
                        help="of each load at most; one of each takes some ten minutes")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for profiles, traces and step logs")
    parser.add_argument("--lock", help="file to lock while measuring")
    parser.add_argument("--capacity", type=float, help="requests per second, if it is known")
    args = parser.parse_args()
    binary, model = str(args.build / "millrace"), made_model(args)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        keep = args.keep or pathlib.Path(temporary)
        keep.mkdir(parents=True, exist_ok=True)
        capacity = args.capacity or measure_capacity(args, binary, model, keep)
        print(f"Capacity: {capacity:.2f} requests/s.\n", flush=True)
        for serving in range(args.servings):
            for load in (load for load, times in SERVINGS.items() if serving < times):
                folder = keep / f"{round(100 * load)}-{serving}"
                folder.mkdir(exist_ok=True)
                rows.append((load, *measure_load(args, binary, model, load * capacity,
                                                 round(load * 10) + 10 * serving, folder)))
                print_rows(rows)
                sys.stdout.flush()
    print(__doc__.split("\n\n")[2].replace("\n", " ") + "\n")
    print_rows(rows)


if __name__ == "__main__":
    main()
