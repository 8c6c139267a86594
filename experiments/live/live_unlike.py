#!/usr/bin/env python3
"""Six unlike workers in two zones with a thin line between them: forecast and measured throughput of
the plan that `millrace plan` makes from what the workers measured, and of three others.

usage: experiments/run live_unlike [--json] [--quick] [--runs N] [--keep DIR]
"""
import statistics
import sys
import time

from cluster import Cluster, make_trace, poisson, questions
from driver import Bar, Driver, first_plan
from machines import Machine, Machines

# With the share of a processor and the memory in MiB; big holds the whole model, no other one does.
MACHINES = [Machine("big", "east", 0.45), Machine("mid", "east", 0.25, 220),
            Machine("low", "east", 0.15, 205), Machine("wide", "west", 0.30, 240),
            Machine("slim", "west", 0.20, 210), Machine("tiny", "west", 0.15, 205)]
HEAD_CORES = 0.30
LINE_MBIT_S, LINE_LATENCY_MS = 4, 5
PROMPT, OUTPUT = (48, 96), (24, 48)
REQUESTS, QUICK_REQUESTS = 30, 24
RATE = 4.5  # requests/s, more than any of the plans answers
OFF_MAX = 0.15
QUESTIONS = 8
VICTIM = "wide"
# Steps of few tokens: a worker whose first step takes more than 3 s is taken for one that hangs.
SERVE = ("--max-num-seqs", 64, "--max-model-len", 512, "--max-num-batched-tokens", 192,
         "--no-enable-prefix-caching")
WORKER = ("--kv-cache-memory", "96MiB", "--max-model-len", 512)


def with_line(text):
    """What the operator of the cluster knows and the workers cannot measure: the zones share one
    line, and the controller is in the east."""
    lines, zones = [], {"coordinator": "east"} | {m.name: m.zone for m in MACHINES}
    for line in text.splitlines():
        if line.startswith("coordinator:"):
            line = "coordinator: {region: east}"
        elif line.startswith("    - {nodes: ["):
            one, other = (word.strip(' "') for word in line[line.index("[") + 1:
                                                           line.index("]")].split(","))
            if zones[one] != zones[other]:
                line = line.replace(", one_way", ", trunk: line, one_way")
        elif line == "links:":
            lines += ["trunks:", f"  - {{name: line, bandwidth: {LINE_MBIT_S} Mbit/s}}"]
        lines.append(line)
    return "\n".join(lines) + "\n"


class Unlike(Driver):
    """One cluster, four plans one after the other under the same loads."""

    def expect(self):
        """What one process answers to every question and every load."""
        self.traces = []
        self.requests = QUICK_REQUESTS if self.args.quick else REQUESTS
        for run in range(self.runs):
            requests = poisson(RATE, self.requests, PROMPT, OUTPUT, run)
            self.traces.append(make_trace(self.folder / f"load{run}.jsonl", requests))
        self.questions = questions(QUESTIONS, 24, 32)
        with self.cluster.alone() as api:
            self.answers = api.ask_all(self.questions)
            self.texts = [self.cluster.bench(trace, self.requests, api)["generated_texts"]
                          for trace in self.traces]

    def plans(self):
        """Names and files of the plans, ours first."""
        live = self.cluster.run("plan", "--live", self.cluster.url, "--model", self.model,
                                "--time-limit", 4)
        self.say(live)
        file = self.folder / "cluster.yaml"
        self.cluster.describe(self.folder / "described.yaml")
        file.write_text(with_line((self.folder / "described.yaml").read_text()))
        found = {"millrace": self.folder / "millrace.yaml"}
        self.say(self.cluster.run("plan", "--cluster", file, "--model", self.model, "--workload",
                                  self.traces[0], "--objective", "goodput", "--time-limit", 30,
                                  "--out", found["millrace"]))
        self.say(self.rival_plans(file, self.traces[0]))
        for name in ("even", "swarm", "single"):
            if (self.folder / f"{name}.yaml").exists():
                found[name] = self.folder / f"{name}.yaml"
        return file, found

    def measure(self, name, file, plan):
        self.cluster.apply(plan)
        forecast, measured = [], []
        for trace, texts in zip(self.traces, self.texts):
            forecast.append(self.cluster.simulate(plan, file, trace)["total_tokens_per_s"])
            result, disturbed = self.quietly(lambda: self.cluster.bench(trace, self.requests))
            self.check(f"{name}: the load", result["generated_texts"], texts)
            measured.append(result["total_token_throughput"])
            self.say(f"{name}: forecast {forecast[-1]:.1f}, measured {measured[-1]:.1f} tokens/s "
                     f"{disturbed}")
        self.check(f"{name}: the questions", self.cluster.api.ask_all(self.questions), self.answers)
        return statistics.median(forecast), statistics.median(measured)

    def kill_one(self, plan):
        """Under our plan, a worker dies while every question is being answered. A plan may have no
        other place for its layers, so it is started again."""
        self.cluster.apply(plan)

        def kill():
            time.sleep(1.0)
            self.cluster.kill(VICTIM)
            self.cluster.join(VICTIM)
        lost = self.cluster.status()["counters"]["workers_lost"]
        self.check("a worker killed", self.cluster.api.ask_all(self.questions, kill), self.answers)
        if self.cluster.status()["counters"]["workers_lost"] != lost + 1:
            raise RuntimeError("the killed worker was not missed")

    def run(self):
        with Machines(MACHINES, LINE_MBIT_S, LINE_LATENCY_MS, head_cores=HEAD_CORES) as machines:
            machines.enter()
            self.cluster = Cluster(machines, self.program, self.model, self.folder, "live", SERVE,
                                   WORKER)
            self.expect()
            self.cluster.start("big", first_plan(self.folder, "big", self.layers))
            self.cluster.describe(self.folder / "described.yaml")
            file, plans = self.plans()
            rows = {name: self.measure(name, file, plan) for name, plan in plans.items()}
            self.kill_one(plans["millrace"])
        return self.table(rows)

    def table(self, rows):
        bars = [Bar(f"{name}, tokens/s", forecast, measured,
                    f"within {OFF_MAX:.0%}", abs(forecast / measured - 1) <= OFF_MAX)
                for name, (forecast, measured) in rows.items()]
        ours = rows["millrace"][1]
        bars += [Bar(f"our plan against {name}", rows["millrace"][0] / forecast, ours / measured,
                     "at least 1", ours >= measured)
                 for name, (forecast, measured) in rows.items() if name != "millrace"]
        return bars


if __name__ == "__main__":
    sys.exit(Unlike(__doc__, runs=3).main())
