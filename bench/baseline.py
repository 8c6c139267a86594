#!/usr/bin/env python3
"""Compares this machine's benchmark ratios with those kept for machines of its kind.

  bench/baseline.py            exit status 1 if a ratio (median of 5 runs) is 20 % below the kept one
  bench/baseline.py --record   keeps the present ratios in bench/baseline/KIND.tsv

Every figure is a ratio: to a sample of the roofline taken beside it, to plain sockets or memcpy, or, for CPU time, to
what the FMA units could compute meanwhile. Greater is better. KIND is vendor, instruction set and number of CPUs. A kind
without a file is not compared: record one on a quiet machine. `make test-all` runs this last.
"""
import argparse
import datetime
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = 5
WORSE = 0.20
BUSY_LOAD = 0.5  # processes that run beside this one, per CPU
TARGETS = ["roofline", "kernels", "model_bench", "sched_cost", "controller_cost", "data_plane_bench"]


def cpu_facts():
    facts = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    return facts


def kind_of_machine():
    facts = cpu_facts()
    flags = set(facts["flags"].split())
    vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(facts["vendor_id"], "other")
    sets = [("amx", "amx_bf16"), ("avx512bf16", "avx512_bf16"), ("avx512", "avx512f"), ("avx2", "avx2")]
    best = next((name for name, flag in sets if flag in flags), "plain")
    return f"{vendor}-{best}-{len(os.sched_getaffinity(0))}"


def number(cell):
    """The first number of a cell; a percentage becomes a ratio."""
    value = float(re.match(r"[\d.]+", cell).group())
    return value / 100 if cell.endswith("%") else value


def tables(text):
    """The rows of all Markdown tables, as {column: cell}."""
    columns = None
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if columns is None:
            columns = cells
        elif not set(line) <= set("|-"):
            yield dict(zip(columns, cells))


def run(bench, *args):
    command = [str(ROOT / "build/release/bench" / bench), *args]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    rows = list(tables(done.stdout))
    if not rows:
        sys.exit(f"{' '.join(command)} printed no table")
    return rows


def kernels():
    """A kernel is bound by memory or by arithmetic: the ratio to what bounds it is the greater one."""
    for row in run("kernels", "--threads", "1", "--repeats", "3"):
        peak = number(row["of tile peak"]) or number(row["of FMA peak"])
        yield row["kernel"], max(number(row["of bandwidth"]), peak)


def models():
    folder = str(ROOT / "build/bench-models")
    for row in run("model_bench", "--only", "llama-160m", "--repeats", "5", "--models", folder):
        yield row["what"], number(row["ratio"])


def fma_gflops():
    return number(run("roofline")[0]["f32 GFLOP/s"])


def scheduler():
    peak = fma_gflops()  # 1,000 operations a microsecond
    for row in run("sched_cost"):
        name = f"scheduler, prefix caching {row['prefix caching']}, borders {row['block borders']}"
        yield name, 1 / (number(row["us per request"]) * peak)


def controller():
    peak = fma_gflops()
    for row in run("controller_cost"):
        what = row["per running request and step"]
        if "ticks and heartbeats" not in what or "all" in what:
            yield f"controller, {what}", 1 / (number(row["us"]) * peak)


def data_plane():
    for row in run("data_plane_bench", "5"):
        if row["what"].startswith("pulls"):
            yield row["what"], number(row["of reference"])


BENCHES = [kernels, models, scheduler, controller, data_plane]


def measure():
    samples = {}
    for turn in range(RUNS):
        for bench in BENCHES:
            print(f"\rrun {turn + 1} of {RUNS}: {bench.__name__:<12}", end="", file=sys.stderr, flush=True)
            for name, ratio in bench():
                samples.setdefault(name, []).append(ratio)
    print(f"\r{'':<40}\r", end="", file=sys.stderr, flush=True)
    return {name: statistics.median(values) for name, values in samples.items()}


def read(path):
    kept = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, ratio = line.split("\t")
            kept[name] = float(ratio)
    return kept


def write(path, kind, ratios):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    lines = [f"# {kind}: {cpu_facts()['model name']}, {datetime.date.today()}, {commit.stdout.strip() or 'no commit'};"
             f" medians of {RUNS} runs; bench/baseline.py --record"]
    lines += [f"{name}\t{ratio:.5g}" for name, ratio in ratios.items()]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def compare(kept, now):
    """The names of what is worse or gone; prints a table."""
    bad = []
    print("| benchmark | kept | now | change |\n|---|---|---|---|")
    for name, before in kept.items():
        if name not in now:
            bad.append(name)
            print(f"| {name} | {before:.3g} | | gone |")
            continue
        change = now[name] / before - 1
        worse = change < -WORSE
        if worse:
            bad.append(name)
        print(f"| {name} | {before:.3g} | {now[name]:.3g} | {change:+.0%}{' WORSE' if worse else ''} |")
    for name in now.keys() - kept.keys():
        print(f"| {name} | | {now[name]:.3g} | new |")
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="keep the present ratios")
    args = parser.parse_args()
    kind = kind_of_machine()
    path = ROOT / "bench/baseline" / f"{kind}.tsv"
    if not args.record and not path.exists():
        print(f"No ratios are kept for a machine of kind {kind}, so none are compared."
              f" On a quiet machine, `bench/baseline.py --record` keeps them.")
        return 0
    subprocess.run([str(ROOT / "scripts/build"), "release", *TARGETS], check=True, stdout=subprocess.DEVNULL)
    busy = os.getloadavg()[0] / len(os.sched_getaffinity(0)) > BUSY_LOAD
    if busy:
        print(f"This machine is busy (load {os.getloadavg()[0]:.1f}); the ratios are less sure.", file=sys.stderr)
    now = measure()
    if args.record:
        write(path, kind, now)
        print(f"{len(now)} ratios are kept in {path.relative_to(ROOT)}")
        return 0
    bad = compare(read(path), now)
    if bad:
        print(f"\n{len(bad)} of {len(now)} ratios are {WORSE:.0%} or more below those kept for {kind}:", file=sys.stderr)
        for name in bad:
            print(f"  {name}", file=sys.stderr)
        print("If the change is meant, keep the new ones with `bench/baseline.py --record`.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
