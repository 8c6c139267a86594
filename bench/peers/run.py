#!/usr/bin/env python3
"""Compares Millrace with other servers on this machine and prints Markdown.

Every server loads the same random weights in bf16, is driven by `millrace bench serve` with the
same token ids, keeps prefixes as it does by default, and has all cores; the load generator shares them. The servers
take turns within each round, one at a time, and the table has medians of the rounds.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys

import load
import machine
import table
from common import PeerError, Server, Setting, say
from model import make_model
from peer_llama_cpp import LlamaCpp
from peer_millrace import Millrace
from peer_openvino import OpenVino
from peer_vllm import Vllm

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PEERS = (LlamaCpp, OpenVino, Vllm)
EXAMPLES = """examples:
  bench/peers/run.py                                    all peers, three rounds
  bench/peers/run.py --install-only                     only download, build and convert
  bench/peers/run.py --peers llama.cpp --rounds 1       one peer, quickly
  bench/peers/run.py --shape llama-1b --clients 4       a larger model, fewer clients

Run the comparison on a machine that does nothing else. Everything is written below --root, with
the servers' logs in logs/ and each round's figures in results.json. Delete the folder to start
over; a step that failed is tried again by itself.
"""


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=names, default=names, metavar="NAME",
                        help=f"which to compare with: {', '.join(names)} (default: all)")
    parser.add_argument("--shape", default="llama-160m",
                        help="model shape of `millrace make-model`, llama-* (default: llama-160m)")
    parser.add_argument("--rounds", type=positive, default=3,
                        help="turns of each server (default: 3)")
    parser.add_argument("--clients", type=positive, default=16,
                        help="clients of the concurrent load, 16 at most (default: 16)")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)),
                        help="compute threads of each server (default: all cores)")
    parser.add_argument("--binary", type=pathlib.Path,
                        default=REPOSITORY / "build/release/millrace",
                        help="Millrace's program (default: build/release/millrace)")
    parser.add_argument("--root", type=pathlib.Path, default=REPOSITORY / "build/peers",
                        help="where everything is installed (default: build/peers)")
    parser.add_argument("--install-only", action="store_true",
                        help="install and convert, measure nothing")
    args = parser.parse_args()
    if args.clients > 16:
        parser.error("--clients: the servers are set up for 16 sequences at most")
    if not args.binary.is_file():
        parser.error(f"--binary: {args.binary} does not exist; `scripts/build release millrace` "
                     "makes build/release/millrace")
    return args


def prepare(peers, setting):
    """The peers that can be served, and why the others cannot."""
    usable, reasons = [], {}
    for peer in peers:
        try:
            peer.install(setting)
            peer.convert(setting)
            usable.append(peer)
        except PeerError as error:
            say(f"{peer.title}: {error}")
            reasons[peer.title] = f"not installed: {error}"
    return usable, reasons


def measure_turn(peer, setting, clients, seed):
    with Server(peer, setting) as server:
        figures = {}
        for scenario in load.scenarios(clients):
            say(f"    {scenario.input_tokens} tokens in, {scenario.output_tokens} out, "
                f"{scenario.clients} at a time, {scenario.requests} requests")
            figures.update(load.measure(setting.binary, server.url, scenario, seed))
        return figures


def measure_rounds(peers, setting, args):
    """{title: figures of each round}, and why a peer has none."""
    rounds, reasons = {}, {}
    for number in range(args.rounds):
        for peer in peers:
            if peer.title in reasons:
                continue
            say(f"==> round {number + 1} of {args.rounds}: {peer.title}")
            try:
                figures = measure_turn(peer, setting, args.clients, number)
            except (PeerError, OSError) as error:
                say(f"{peer.title}: {error}")
                reasons[peer.title] = f"failed in round {number + 1}: {error}"
                rounds.pop(peer.title, None)
                continue
            rounds.setdefault(peer.title, []).append(figures)
        (setting.root / "results.json").write_text(json.dumps(rounds, indent=1))
    return rounds, reasons


def revision(binary):
    """The commit of a binary that was built in this checkout."""
    if REPOSITORY not in binary.resolve().parents:
        return ""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, text=True,
                          capture_output=True, check=False)
    return f" ({done.stdout.strip()})" if done.returncode == 0 else ""


def head(peers, args):
    versions = "; ".join(f"{peer.title} {peer.version}" for peer in peers)
    return [f"Machine: {machine.this_machine()}.", "",
            f"Servers: {versions}.", "",
            f"{args.shape} with random weights in bf16, {args.threads} threads, 128 tokens in, 64 "
            f"out; medians of {args.rounds} round{'s' if args.rounds > 1 else ''}. Command: "
            "`make bench-peers`."]


def main():
    args = arguments()
    # As Ctrl-C does: servers that run are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run.py: stopped"))
    setting = Setting(args.root.resolve(), args.binary.resolve(), args.shape, args.threads)
    ours = Millrace(setting.binary)
    ours.version += revision(setting.binary)
    try:
        make_model(setting)
    except PeerError as error:
        sys.exit(f"run.py: {error}")
    usable, reasons = prepare([peer() for peer in PEERS if peer.name in args.peers], setting)
    if args.install_only:
        for title, reason in reasons.items():
            print(f"{title}: {reason}")
        return 1 if reasons else 0
    rounds, failures = measure_rounds([ours, *usable], setting, args)
    print(table.report(head([ours, *usable], args), rounds, {**reasons, **failures}, ours.title,
                       args.clients))
    return 0 if rounds.get(ours.title) else 1


if __name__ == "__main__":
    sys.exit(main())
