#!/usr/bin/env python3
"""Six unlike workers under a plan, and one of them is lost: what the autopilot's cluster delivers
within 30 s of the loss, beside what a fresh plan for the other five gives. Then it joins again.

usage: experiments/run live_loss [--json] [--quick] [--keep DIR]
"""
import itertools
import pathlib
import sys
import threading
import time

from cluster import Cluster, questions
from harness import Bar, Driver, first_plan
from live_unlike import (HEAD_CORES, LINE_LATENCY_MS, LINE_MBIT_S, MACHINES, SERVE, VICTIM, WORKER,
                         with_line)
from machines import Machines

BACK_WITHIN_S = 30
SHARE_MIN = 0.95
MEASURED_S = 30
ANSWER_S = 15       # no answer takes longer
SETTLE_S = 10      # after a change by hand, before it is measured
CLIENTS = 24       # that each have a request at all times
KINDS, WORDS, TOKENS = 48, 48, 32
AUTOPILOT = ("--autopilot", "act", "--autopilot-window", 5, "--autopilot-verify", 10)
MODES = ("lost", "joined")


class Load:
    """Clients that ask one request after another; when each token came."""

    def __init__(self, api, requests, expected):
        self.api, self.requests, self.expected = api, requests, expected
        self.numbers = itertools.count()
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.came, self.wrong, self.answered, self.failed = [], [], 0, []
        self.threads = [threading.Thread(target=self.run) for _ in range(CLIENTS)]

    def run(self):
        while not self.over.is_set():
            with self.lock:
                kind = next(self.numbers) % len(self.requests)
            try:
                text, times = self.api.timed(self.requests[kind])
            except Exception as error:
                self.failed.append(error)
                return
            with self.lock:
                self.came += times
                self.answered += 1
                if text != self.expected[kind]:
                    self.wrong.append((kind, text))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def rate(self, begin, end):
        """Tokens of answers per second. Those of answers that are not whole yet come later: ask
        for times that are some seconds ago."""
        with self.lock:
            return sum(begin <= at < end for at in self.came) / (end - begin)


class Loss(Driver):
    """One cluster. Each mode: the change, then a fresh plan for the same workers."""

    def measured(self, load, since):
        """From `since` on, once what came then belongs to whole answers."""
        time.sleep(max(0.0, since + MEASURED_S - time.monotonic()) + ANSWER_S)
        return load.rate(since, since + MEASURED_S)

    def fresh_plan(self, name):
        """The best plan for the workers that are there, as an operator makes it."""
        file, plan = self.folder / f"{name}-cluster.yaml", self.folder / f"{name}.yaml"
        file.write_text(with_line(self.cluster.run("cluster", "describe", "--base-url",
                                                   self.cluster.url)))
        self.say(self.cluster.run("plan", "--cluster", file, "--model", self.model, "--workload",
                                  self.workload, "--objective", "goodput", "--time-limit", 30,
                                  "--out", plan))
        return plan

    def apply_and_measure(self, load, plan):
        self.cluster.apply(plan)
        return self.measured(load, time.monotonic() + SETTLE_S)

    def decided(self):
        text = self.cluster.run("decisions", "--base-url", self.cluster.url)
        self.say(text)
        return text

    def change(self, mode):
        if mode == "lost":
            self.cluster.kill(VICTIM)
        else:
            self.cluster.join(VICTIM)
            self.cluster.wait_for(lambda s: len(s["workers"]) == len(MACHINES))

    def run(self):
        self.workload = self.folder / "workload.yaml"
        self.workload.write_text(f"arrivals: poisson\nrate: 4.5 req/s\nrequests: 200\nlengths: "
                                 f"{{prompt: {WORDS} tokens, output: {TOKENS} tokens}}\n")
        with Machines(MACHINES, LINE_MBIT_S, LINE_LATENCY_MS, head_cores=HEAD_CORES) as machines:
            machines.enter()
            self.cluster = Cluster(machines, self.program, self.model, self.folder, "live",
                                   SERVE + AUTOPILOT, WORKER)
            self.questions = questions(KINDS, WORDS, TOKENS)
            with self.cluster.alone() as api:
                self.answers = api.ask_all(self.questions)
            self.cluster.start("big", first_plan(self.folder, "big", self.layers))
            self.cluster.describe(self.folder / "described.yaml")
            rows = {}
            with Load(self.cluster.api, self.questions, self.answers) as load:
                rows["before"] = self.apply_and_measure(load, self.fresh_plan("before"))
                for mode in MODES[:1 if self.args.quick else None]:
                    self.change(mode)
                    after = self.measured(load, time.monotonic() + BACK_WITHIN_S)
                    self.decided()
                    rows[mode] = after, self.apply_and_measure(load, self.fresh_plan(mode))
                    self.say(f"{mode}: {rows[mode]}")
            if load.failed or load.wrong:
                raise RuntimeError(f"failed {load.failed[:1]}, wrong {load.wrong[:1]}")
            self.compared += load.answered
        return self.table(rows)

    @staticmethod
    def table(rows):
        bars = [Bar("before the loss, tokens/s", "", rows["before"], "", True)]
        for mode in MODES:
            if mode in rows:
                after, fresh = rows[mode]
                bars.append(Bar(f"{VICTIM} {mode}: tokens/s after {BACK_WITHIN_S} s, and by a fresh "
                                "plan", fresh, after, f"at least {SHARE_MIN:.0%} of the fresh plan",
                                after >= SHARE_MIN * fresh))
        return bars


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    sys.exit(Loss(__doc__, runs=1).main())
