"""What the measured experiments share: options, the model, comparison of answers, the table."""
import argparse
import dataclasses
import fcntl
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from cluster import ROOT
from machines import NotPossible, raise_on_signals

SKIPPED = 77
BUILD = ROOT / "build" / "release"
MODEL = ROOT / "build" / "live-model"
# 12 layers of 14 MB in bf16: a step takes milliseconds on a whole processor.
MODEL_WORDS = ("make-model", "--shape", "llama-160m", "--vocab", "4096", "--seed", "1")
LAYERS = 12
OTHERS_MAX = 0.15  # share of the processors that other programs may take during a measurement
TRIES = 3


@dataclasses.dataclass
class Bar:
    what: str
    forecast: object
    measured: object
    bar: str
    held: bool


def first_plan(folder, worker, layers):
    """The whole model on one worker: for the time before there is a plan."""
    path = pathlib.Path(folder) / "first.yaml"
    path.write_text(f"format: 1\nmodel: live\nlayers: {layers}\nstages:\n"
                    f"  - {{stage: 0, nodes: [{worker}], layers: [0, {layers}]}}\n")
    return path


def processor_ticks():
    """(busy, stolen, all) of all processors."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], fields[7], sum(fields)


class Driver:
    """An experiment. Subclasses have run(), which returns the bars."""

    def __init__(self, description, runs):
        parser = argparse.ArgumentParser(description=description.strip().split("\n\n")[0],
                                         formatter_class=argparse.RawTextHelpFormatter)
        parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
        parser.add_argument("--quick", action="store_true", help="one short run of each")
        parser.add_argument("--runs", type=int, default=runs, help="the medians are over these")
        parser.add_argument("--keep", type=pathlib.Path, help="folder for plans, loads and logs")
        parser.add_argument("--build", type=pathlib.Path, default=BUILD, help="build folder")
        parser.add_argument("--lock", help="file to lock while measuring")
        self.args = parser.parse_args()
        self.build = self.args.build.resolve()
        self.program = self.build / "millrace"
        self.runs = 1 if self.args.quick else self.args.runs
        self.layers, self.compared = LAYERS, 0

    @staticmethod
    def say(text):
        print(text.rstrip(), file=sys.stderr, flush=True)

    def make_model(self):
        self.model = MODEL
        if not (MODEL / "config.json").exists():
            subprocess.run([self.program, *MODEL_WORDS, MODEL], check=True, capture_output=True)

    def rival_plans(self, cluster, trace):
        done = subprocess.run(
            [self.build / "experiments" / "rival_plans", cluster, self.model, trace, self.folder],
            check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return done.stdout

    def check(self, what, answers, expected):
        """Byte for byte what one process answers."""
        if len(answers) != len(expected):
            raise RuntimeError(f"{what}: {len(answers)} answers to {len(expected)} requests")
        for number, (one, other) in enumerate(zip(answers, expected)):
            if one != other:
                raise RuntimeError(f"{what}: request {number} was answered with\n{one!r}\n"
                                   f"and by one process with\n{other!r}")
        self.compared += len(answers)

    def quietly(self, measure):
        """The result during which other programs took the least of the processors, of up to TRIES,
        and how much that was."""
        best = None
        groups = self.cluster.machines.groups
        for _ in range(TRIES):
            busy, stolen, total = processor_ticks()
            own = self.cluster.machines.parent.processor_s()
            used = {name: group.processor_s() for name, group in groups.items()}
            began = time.monotonic()
            result = measure()
            took_s = time.monotonic() - began
            used = [f"{name} {(group.processor_s() - used[name]) / took_s:.2f}"
                    for name, group in groups.items()]
            own = (self.cluster.machines.parent.processor_s() - own) * 100
            busy, stolen, total = (after - before for after, before in
                                   zip(processor_ticks(), (busy, stolen, total)))
            others = max(0.0, busy - own) / total
            if best is None or others < best[0]:
                best = others, result, (f"(others {others:.0%}, stolen {stolen / total:.1%}; "
                                        f"processors used: {', '.join(used)})")
            if others <= OTHERS_MAX or self.args.quick:
                break
        return best[1:]

    def print_table(self, bars):
        if self.args.json:
            print(json.dumps([dataclasses.asdict(bar) for bar in bars], indent=2))
            return
        def text(value):
            return f"{value:.3g}" if isinstance(value, float) else str(value)
        print("| what | forecast | measured | bar | verdict |\n|---|---|---|---|---|")
        for bar in bars:
            print(f"| {bar.what} | {text(bar.forecast)} | {text(bar.measured)} | {bar.bar} | "
                  f"{'held' if bar.held else '**missed**'} |")
        print(f"\n{self.compared} answers were compared with those of one process: all are the "
              "same, byte for byte.")

    def main(self):
        raise_on_signals()
        self.make_model()
        began = time.monotonic()
        folder = self.args.keep or pathlib.Path(tempfile.mkdtemp(prefix="millrace-live-"))
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        try:
            with open(self.args.lock or "/dev/null", "a", encoding="ascii") as lock:
                if self.args.lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                bars = self.run()
        except NotPossible as error:
            self.say(f"not run: {error}")
            return SKIPPED
        except Exception:
            for log in sorted(self.folder.rglob("*.log")):
                self.say(f"-- {log.name}\n" + "\n".join(log.read_text().splitlines()[-15:]))
            raise
        finally:
            if not self.args.keep:
                shutil.rmtree(self.folder, ignore_errors=True)
        self.print_table(bars)
        self.say(f"{time.monotonic() - began:.0f} s")
        return 0
