#!/usr/bin/env python3
"""Measures the whole server in ratios to the machine's roofline and to its own engine.

usage: bench/server.py BUILD_DIR [--models DIR] [--repeats N]

Method: one server process with 2 threads on the llama-160m shape in bf16, random weights; the load
comes from `millrace bench serve` on the same two cores. Before each repeat the FMA peak is sampled by
bench/roofline; the roofline of a workload is peak / FLOPs per request (weight products and attention).
Medians over the repeats. Only the loopback interface is used.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
from harness import processes  # noqa: E402
from harness.proc import memory_bytes  # noqa: E402

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64


def flops_per_request(config, prompt, output):
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    kv_heads = config.get("num_key_value_heads", heads)
    weights = layers * (hidden * (heads + 2 * kv_heads) * head_dim + hidden * heads * head_dim
                        + 3 * hidden * config["intermediate_size"])
    positions = prompt + output - 1
    attention = 4 * layers * heads * head_dim * positions * (positions + 1) / 2
    return 2 * weights * positions + attention + 2 * hidden * config["vocab_size"] * output


class Server(processes.Server):
    def __init__(self, binary, model, options=()):
        started = time.monotonic()
        super().__init__(binary, "serve", model, "--threads", "2", "--served-model-name", "bench",
                         "--max-model-len", "512", "--kv-cache-memory", "256MiB", *options)
        self.wait_until_ready()
        self.ready_s = time.monotonic() - started

    def rss_bytes(self):
        return memory_bytes(self.process.pid)


def made_model(args):
    """The folder of the model, which is made where it is not."""
    model = f"{args.models}/llama-160m"
    if not os.path.isdir(model):
        processes.run(args.build / "millrace", "make-model", "--shape", "llama-160m", "--seed", "0", model,
                      limit_s=None)
    return model


def bench_serve(binary, url, prompts, concurrency, seed):
    with tempfile.TemporaryDirectory() as folder:
        processes.run(
            binary, "bench", "serve", "--base-url", url, "--model", "bench", "--dataset-name", "random",
            "--random-input-len", PROMPT_TOKENS, "--random-output-len", OUTPUT_TOKENS, "--num-prompts",
            prompts, "--max-concurrency", concurrency, "--ignore-eos", "--seed", seed, "--save-result",
            "--result-dir", folder, "--result-filename", "r.json", limit_s=None)
        result = json.loads((pathlib.Path(folder) / "r.json").read_text())
    if result["completed"] != prompts:
        raise SystemExit(f"{result['failed']} of {prompts} requests failed")
    return result


def engine_alone(binary, model, prompts, seed):
    output = processes.run(
        binary, "bench", "throughput", model, "--threads", "2", "--dataset-name", "random",
        "--random-input-len", PROMPT_TOKENS, "--random-output-len", OUTPUT_TOKENS, "--num-prompts",
        prompts, "--max-num-seqs", "32", "--max-model-len", "512", "--kv-cache-memory", "256MiB",
        "--seed", seed, limit_s=None).stdout
    return float(re.search(r"([\d.]+) output tokens/s", output).group(1))


def peak_gflops(build):
    output = processes.run(build / "bench/roofline", "--threads", "2", "--repeats", "9",
                           limit_s=None).stdout
    return float(re.search(r"^\| 2 \|[^|]*\| (\d+)", output, re.MULTILINE).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--models", default="/tmp/millrace-bench")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    binary, model = str(args.build / "millrace"), made_model(args)
    config = json.loads(pathlib.Path(model, "config.json").read_text())
    weights = sum(f.stat().st_size for f in pathlib.Path(model).glob("*.safetensors"))
    flops = flops_per_request(config, PROMPT_TOKENS, OUTPUT_TOKENS)

    roofline_ratios, engine_ratios, rates, memory = [], [], [], []
    for repeat in range(args.repeats):
        peak = peak_gflops(args.build) * 1e9
        server = Server(binary, model)
        try:
            memory.append((server.rss_bytes(), server.ready_s))
            sixteen = bench_serve(binary, server.url, 64, 16, repeat)
            many = bench_serve(binary, server.url, 96, 32, repeat)
            memory.append((server.rss_bytes(), server.ready_s))
        finally:
            server.stop()
        alone = engine_alone(binary, model, 96, repeat)
        rates.append(sixteen["request_throughput"])
        roofline_ratios.append(sixteen["request_throughput"] / (peak / flops))
        engine_ratios.append(many["output_throughput"] / alone)
    median = statistics.median
    print(__doc__.split("\n\n")[2].replace("\n", " "))
    print(f"\n{flops / 1e9:.1f} GFLOP per request of {PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out.\n")
    print("| what | value |\n|---|---|")
    print(f"| 16 clients, requests/s | {median(rates):.2f} |")
    print(f"| 16 clients, of the FMA roofline | {median(roofline_ratios):.0%} |")
    print(f"| 32 streams, tokens/s of the engine alone | {median(engine_ratios):.0%} |")
    print(f"| weights, MB | {weights / 1e6:.0f} |")
    print(f"| RSS at most, MB (KV pool of 268 MB) | {max(m[0] for m in memory) / 1e6:.0f} |")
    print(f"| ready after, s | {median([m[1] for m in memory]):.2f} |")


if __name__ == "__main__":
    main()
