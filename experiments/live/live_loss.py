#!/usr/bin/env python3
"""Six unlike workers under a plan, and one of them is lost: what the autopilot's cluster delivers
within 30 s of the loss, beside what a fresh plan for the other five gives. Then it joins again.

usage: experiments/run live_loss [--json] [--quick] [--keep DIR]
"""
import itertools
import sys
import threading
import time

from cluster import Cluster, questions
from driver import Bar, Driver, first_plan
from live_unlike import (HEAD_CORES, LINE_LATENCY_MS, LINE_MBIT_S, MACHINES, SERVE, VICTIM, WORKER,
                         with_line)
from machines import Machines

BACK_WITHIN_S = 30
SHARE_MIN = 0.95
MEASURED_S = 30
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
                text, times = self.api.stream(self.requests[kind])
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

    def rate(self, begin):
        """Tokens of answers per second in the MEASURED_S from then on. Once all answers are whole."""
        return sum(begin <= at < begin + MEASURED_S for at in self.came) / MEASURED_S


class Loss(Driver):
    """One cluster. Each mode: the change, then a fresh plan for the same workers."""

    @staticmethod
    def wait(seconds):
        """When the measurement begins that is over when this returns."""
        begin = time.monotonic() + seconds
        time.sleep(seconds + MEASURED_S)
        return begin

    def fresh_plan(self, name):
        """The best plan for the workers that are there, as an operator makes it."""
        file, plan = self.folder / f"{name}-cluster.yaml", self.folder / f"{name}.yaml"
        file.write_text(with_line(self.cluster.run("cluster", "describe", "--base-url",
                                                   self.cluster.url)))
        self.say(self.cluster.run("plan", "--cluster", file, "--model", self.model, "--workload",
                                  self.workload, "--objective", "goodput", "--time-limit", 30,
                                  "--out", plan))
        return plan

    def apply_and_wait(self, plan):
        self.cluster.apply(plan)
        return self.wait(SETTLE_S)

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
            with Load(self.cluster.api, self.questions, self.answers) as load:
                begins = {"before": (self.apply_and_wait(self.fresh_plan("before")),)}
                for mode in MODES[:1 if self.args.quick else None]:
                    self.change(mode)
                    after = self.wait(BACK_WITHIN_S)
                    self.say(self.cluster.run("decisions", "--base-url", self.cluster.url))
                    begins[mode] = after, self.apply_and_wait(self.fresh_plan(mode))
            if load.failed or load.wrong:
                raise RuntimeError(f"failed {load.failed[:1]}, wrong {load.wrong[:1]}")
            self.compared += load.answered
        return self.table({name: [load.rate(begin) for begin in all_of]
                           for name, all_of in begins.items()})

    @staticmethod
    def table(rows):
        bars = [Bar("before the loss, tokens/s", "", rows["before"][0], "", True)]
        for mode in MODES:
            if mode in rows:
                after, fresh = rows[mode]
                bars.append(Bar(f"{VICTIM} {mode}: tokens/s after {BACK_WITHIN_S} s, and by a fresh "
                                "plan", fresh, after, f"at least {SHARE_MIN:.0%} of the fresh plan",
                                after >= SHARE_MIN * fresh))
        return bars


if __name__ == "__main__":
    sys.exit(Loss(__doc__, runs=1).main())
