#!/usr/bin/env python3
"""Measures how fast the KV of prompts goes from a prefill worker's process to a decode worker's, and what a client sees of it.

usage: bench/hand_over.py BUILD_DIR [--shape NAME] [--models DIR] [--prompts 128,512,2000] [--repeats N]

Method: `millrace up` with one worker that computes prompts and one that decodes, one thread each, random weights. Streams
come one at a time, so nothing else wants the processor or the link. GB/s: bytes over the time of the pulls, which is from
the order until the last byte is in the decode worker's pool, by the server's own counters. Share of a copy: that, over the
rate at which one thread copies 256 MiB from memory to memory just before. First gap: from a stream's first token to its
second; a decode step: the median of the gaps after it. Medians over the repeats. Only the loopback interface is used.
"""
import argparse
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
from harness import processes  # noqa: E402
from harness.http import objects, send  # noqa: E402

COPY_BYTES = 256 << 20
ANSWER_TOKENS = 24


def copy_gb_per_s():
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    source[:] = b"\1" * COPY_BYTES
    rates = []
    for _ in range(3):
        began = time.monotonic()
        target[:] = source
        rates.append(COPY_BYTES / (time.monotonic() - began) / 1e9)
    return statistics.median(rates)


class Cluster(processes.Server):
    def __init__(self, binary, model):
        super().__init__(binary, "up", model, "--prefill-workers", "1", "--decode-workers", "1", "--threads", "1",
                         "--served-model-name", "bench", "--kv-cache-memory", "2GiB")
        self.wait_until_ready()

    def handed_over(self):
        samples = self.metrics()
        return (samples.sum("millrace_hand_over_bytes_total"), samples.sum("millrace_hand_over_seconds_total"))

    def gaps_s(self, prompt):
        """The times between the tokens of one stream."""
        body = {"model": "bench", "prompt": prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True,
                "temperature": 0, "stream": True}
        with self.connect() as connection:
            reply = send(connection, "POST", "/v1/completions", body, self.headers())
            arrived = [time.monotonic() for event in objects(reply) if event["choices"]]
        return [b - a for a, b in zip(arrived, arrived[1:])]


def measure(cluster, tokens, repeats, pick):
    rates, first, steps = [], [], []
    for _ in range(repeats):
        before = cluster.handed_over()
        gaps = cluster.gaps_s([pick.randrange(10, 30000) for _ in range(tokens)])
        moved, seconds = (b - a for a, b in zip(before, cluster.handed_over()))
        if moved <= 0:
            raise SystemExit("no KV was handed over")
        rates.append(moved / seconds / 1e9)
        first.append(gaps[0])
        steps.append(statistics.median(gaps[1:]))
    return moved, *map(statistics.median, (rates, first, steps))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--shape", default="llama-160m")
    parser.add_argument("--models", default="/tmp/millrace-bench", type=pathlib.Path)
    parser.add_argument("--prompts", default="128,512,2000", help="their lengths in tokens")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    binary, model = args.build / "millrace", args.models / args.shape
    if not model.is_dir():
        processes.run(binary, "make-model", "--shape", args.shape, "--seed", "0", model, limit_s=None)
    pick = random.Random(7)
    copy = copy_gb_per_s()
    print(f"One thread copies {copy:.1f} GB/s.\n")
    print("| prompt, tokens | KV, MB | hand-over, GB/s | share of a copy | first gap, ms | a decode step, ms |")
    print("|---|---|---|---|---|---|")
    cluster = Cluster(binary, model)
    try:
        cluster.gaps_s([9] * 64)
        for tokens in map(int, args.prompts.split(",")):
            moved, rate, first, step = measure(cluster, tokens, args.repeats, pick)
            print(f"| {tokens} | {moved / 1e6:.1f} | {rate:.2f} | {rate / copy:.0%} | {first * 1e3:.0f} | "
                  f"{step * 1e3:.0f} |", flush=True)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
