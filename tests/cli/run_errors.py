#!/usr/bin/env python3
"""Runs every command line of user_errors.txt against the real program.

Each must leave with the status and the single line on stderr that the file says, within a few
seconds, and say nothing on stdout. `--rewrite` writes what the program says now.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import processes  # noqa: E402
from harness.cases import DEMO, take_paths  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE / "user_errors.txt"
CASES_MIN = 30
TIMEOUT_S = 60

FILES = {
    "file.txt": "some text\nof two lines\n",
    "good.txt": "one prompt\n",
    "empty.txt": "\n\n",
    "bad.jsonl": '{"prompt": "a"}\n{"prompt": \n',
    "unknown.yaml": "host: 127.0.0.1\nprot: 80\n",
    "nested.yaml": "port:\n  number: 80\n",
    "broken.yaml": "port: [80\n",
    "value.yaml": "port: eighty\n",
    "full/file.txt": "x\n",
    "one.yaml": "name: one\nnodes:\n  - {name: a, device: l4, memory: 24 GB}\n",
    "two.yaml": "name: two\nnodes:\n  - {name: a, count: 2, device: l4, memory: 24 GB}\n"
                "links:\n  within_region: {bandwidth: 1 Gbit/s, latency: 1 ms}\n",
    "price.yaml": "name: one\nnodes:\n  - {name: a, device: l4, memory: 24 GB, price: -1 USD/h}\n",
    "fleet.yaml": "kinds:\n  - {name: a, provider: nobody, max: 1, requests: 1 req/s}\n",
    "dear.yaml": "budget: 1 USD/h\nkinds:\n  - {name: a, provider: none, min: 2, max: 2, "
                 "price: 1 USD/h, requests: 1 req/s}\n",
    "unit.yaml": "name: one\nnodes:\n  - {name: a, device: l4, memory: 24}\n",
    "key.yaml": "name: one\nnodes:\n  - {name: a, device: l4, memory: 24 GB, prise: 1 USD/h}\n",
    "device.yaml": "name: one\nnodes:\n  - {name: a, device: abacus, memory: 24 GB}\n",
    "zero.yaml": "name: two\nnodes:\n  - {name: a, count: 2, device: l4, memory: 24 GB}\n"
                 "links:\n  within_region: {bandwidth: 0 Gbit/s, latency: 1 ms}\n",
    "apart.yaml": "name: two\nnodes:\n  - {name: a, region: x, device: l4, memory: 24 GB}\n"
                  "  - {name: b, region: y, device: l4, memory: 24 GB}\n"
                  "links:\n  within_region: {bandwidth: 1 Gbit/s, latency: 1 ms}\n"
                  "coordinator: {region: x}\n",
    "plan.yaml": "format: 1\nmodel: opt-125m\nlayers: 12\ncluster: other\n"
                 "cluster_fingerprint: \"0\"\nflow: 1 tokens/s\nbound: 1 tokens/s\nstages: []\n",
    "table.txt": "cluster one\nmodel toy\nlayers 2\nnodes 1\nactivation_bytes 4\n"
                 "token_bytes 2\nnode 0 L4 0 2 5\n",
    "cluster.ini": "[ComputeNode-0]\ntype=H900\n",
    "late.csv": "arrival_s,prompt_tokens,output_tokens\n1,10,10\n0,10,10\n",
    "rate.yaml": "arrivals: poisson\nrate: 5\nlengths: {prompt: 1 tokens, output: 1 tokens}\n",
    "back.csv": "arrival_s,prompt_tokens,output_tokens\n5,1,1\n4,1,1\n",
    "empty.csv": "arrival_s,prompt_tokens,output_tokens\n",
}


def read_cases():
    """(words, status, message) of each case; status None where none is written yet."""
    comments, cases = [], []
    for line in CASES.read_text().splitlines():
        if line.startswith("$ "):
            cases.append([line[2:], None, ""])
        elif line.startswith("#"):
            comments.append(line)
        elif line:
            status, _, message = line.partition(" ")
            cases[-1][1:] = [int(status), message]
    return comments, cases


def run(program, words, folder):
    environment = {"PATH": os.environ["PATH"], "HOME": folder, "HF_HOME": folder + "/hf",
                   "HF_HUB_OFFLINE": "1"}
    args = [w.replace("TMP", folder).replace("MODEL", str(DEMO)) for w in words.split()]
    done = processes.run(program, *args, env=environment, limit_s=TIMEOUT_S, cwd=folder,
                         stdin=subprocess.DEVNULL, status=None)
    message = done.stderr.replace(folder, "TMP").replace(str(DEMO), "MODEL")
    return done.returncode, message, done.stdout


def problems_of(words, wanted, got):
    status, message, stdout = got
    if (status, message) != (wanted[0], wanted[1] + "\n"):
        yield f"$ {words}\n  wanted {wanted[0]} {wanted[1]}\n  got    {status} {message}"
    if message.count("\n") != 1 or not message.startswith("millrace"):
        yield f"$ {words}\n  must write one line that begins with 'millrace': {message!r}"
    if status not in (1, 2):
        yield f"$ {words}\n  left with {status}"
    if stdout:
        yield f"$ {words}\n  wrote to stdout: {stdout!r}"
    if re.search(r"terminate|backtrace|0x[0-9a-f]{6}|\.cc:\d+", message):
        yield f"$ {words}\n  shows the inside of the program: {message!r}"


def main():
    program, = take_paths(1)
    rewrite = "--rewrite" in sys.argv
    comments, cases = read_cases()
    problems, written = [], list(comments)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for words, *wanted in cases:
            got = run(program, words, folder)
            written += [f"$ {words}", f"{got[0]} {got[1].strip()}"]
            problems += [] if rewrite else list(problems_of(words, wanted, got))
    if rewrite:
        CASES.write_text("\n".join(written) + "\n")
        return 0
    if len(cases) < CASES_MIN:
        problems.append(f"only {len(cases)} cases, at least {CASES_MIN} are promised")
    print("\n".join(problems) or f"{len(cases)} user errors, each one line")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
