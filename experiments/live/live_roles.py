#!/usr/bin/env python3
"""Prefill and decode apart against together, on two workers with the same processor time in all: the
share of requests within the limits, forecast and measured, under one load for which the planner
separates the two and under one for which it does not.

usage: experiments/run live_roles [--json] [--quick] [--runs N] [--keep DIR]
"""
import dataclasses
import json
import statistics
import sys
import time

from cluster import Cluster, make_trace, poisson, questions
from driver import Bar, Driver, first_plan
from machines import Machine, Machines

CORES = 0.6
MACHINES = [Machine("left", "east", CORES), Machine("right", "east", CORES)]
HEAD_CORES = 0.35
OFF_MAX, ADVICE_OFF_MAX = 0.15, 0.05
QUESTIONS = 6
STEP_TOKENS = {"whole": 512, "chunks": 48}  # of a step: whole prompts, or pieces of them
WORKER = ("--kv-cache-memory", "96MiB", "--max-model-len", 512)
LAYOUTS = {"apart": "whole", "together": "whole", "chunked": "chunks"}
ROLES = {"apart": ("prefill", "decode"), "together": ("both", "both"), "chunked": ("both", "both")}


@dataclasses.dataclass(frozen=True)
class Load:
    name: str
    rate: float
    prompt: tuple
    output: tuple
    slo: tuple
    seconds: float = 20

    def workload(self):
        """For the planner, whose search needs more requests than are served here."""
        def lengths(low, high):
            return f"{{uniform: {{min: {low} tokens, max: {high} tokens}}}}"
        return (f"arrivals: poisson\nrate: {self.rate} req/s\nrequests: 400\nlengths:\n"
                f"  prompt: {lengths(*self.prompt)}\n  output: {lengths(*self.output)}\n")


LOADS = [Load("long prompts", 0.9, (160, 224), (16, 32), ("ttft=4s", "tpot=30ms")),
         Load("long answers", 4, (16, 32), (48, 64), ("ttft=1s", "tpot=35ms"))]


def plan_text(layers, roles, cluster):
    """`cluster`: the lines of a plan that say for which machines it was made."""
    stages = "".join(f"  - {{stage: {i}, nodes: [{m.name}], layers: [0, {layers}], role: {role}}}\n"
                     for i, (m, role) in enumerate(zip(MACHINES, roles)))
    flow = "flow: 1 tokens/s}\n"
    edges = "".join(f"  - {{from: coordinator, to: {i}, phase: {role}, " + flow +
                    f"  - {{from: {i}, to: coordinator, phase: {role}, " + flow
                    for i, role in enumerate(roles))
    if "prefill" in roles:
        edges += "  - {from: 0, to: 1, phase: hand-over, " + flow
    return (f"format: 1\nmodel: live\nlayers: {layers}\n{cluster}flow: 2 tokens/s\n"
            f"bound: 2 tokens/s\nstages:\n{stages}edges:\n{edges}")


class Roles(Driver):
    """A cluster for each size of a step, since that is an option of the controller."""

    def expect(self):
        self.questions = questions(QUESTIONS, 90, 32)
        self.traces, self.texts = {}, {}
        with self.cluster.alone() as api:
            self.answers = api.ask_all(self.questions)
            for number, load in enumerate(LOADS):
                for run in range(self.runs):
                    requests = poisson(load.rate, self.count(load), load.prompt, load.output,
                                       100 * number + run)
                    trace = make_trace(self.folder / f"load{number}-{run}.jsonl", requests)
                    burst = make_trace(self.folder / "burst.jsonl",
                                       [(0, *lengths) for _, *lengths in requests])
                    self.traces.setdefault(load.name, []).append(trace)
                    self.texts[trace] = self.cluster.bench(burst, self.count(load),
                                                           api)["generated_texts"]

    def count(self, load):
        return round(load.rate * load.seconds / (3 if self.args.quick else 1))

    def write_plans(self, file):
        some = self.folder / "some.yaml"
        self.cluster.run("plan", "--cluster", file, "--model", self.model, "--time-limit", 1,
                         "--out", some)
        cluster = "".join(line + "\n" for line in some.read_text().splitlines()
                          if line.startswith("cluster"))
        for layout, roles in ROLES.items():
            (self.folder / f"{layout}.yaml").write_text(plan_text(self.layers, roles, cluster))

    def advice(self, file, load):
        """Whether `millrace plan` separates prefill from decode under this load."""
        workload = self.folder / "workload.yaml"
        workload.write_text(load.workload())
        answer = json.loads(self.cluster.run(
            "plan", "--cluster", file, "--model", self.model, "--workload", workload,
            "--objective", "goodput", "--slo", *load.slo, "--time-limit", 20, "--json"))
        judged = [(c["simulated_requests_per_s"], c["roles"]) for c in answer["candidates"]
                  if c["simulated_requests_per_s"] is not None]
        self.say(f"{load.name}: the planner's candidates {sorted(judged, reverse=True)[:4]}")
        return any(stage["role"] != "both" for stage in answer["stages"])

    def measure(self, layout, file, load):
        plan = self.folder / f"{layout}.yaml"
        forecast, measured = [], []
        for trace in self.traces[load.name]:
            expected = self.cluster.simulate(plan, file, trace, load.slo)
            forecast.append(expected["slo"]["attainment"])
            result, disturbed = self.quietly(
                lambda trace=trace: self.cluster.bench(trace, self.count(load), slo=load.slo))
            self.check(f"{layout}, {load.name}", result["generated_texts"], self.texts[trace])
            measured.append(result["attainment"])
            self.say(f"{layout}, {load.name}: forecast {forecast[-1]:.2f}, measured "
                     f"{measured[-1]:.2f}; TTFT {expected['ttft_ms']['p50']:.0f} and "
                     f"{result['median_ttft_ms']:.0f} ms, TPOT {expected['tpot_ms']['p50']:.0f} "
                     f"and {result['median_tpot_ms']:.0f} ms {disturbed}")
        return statistics.median(forecast), statistics.median(measured)

    def kill_one(self):
        """The worker that prefills dies while it computes prompts."""
        def kill():
            time.sleep(1.0)
            self.cluster.kill("left")
        self.check("a worker killed", self.cluster.api.ask_all(self.questions, kill), self.answers)
        if self.cluster.status()["counters"]["workers_lost"] != 1:
            raise RuntimeError("the killed worker was not missed")

    def with_steps(self, steps, rows, advice):
        serve = ("--max-num-seqs", 32, "--max-model-len", 512, "--max-num-batched-tokens",
                 STEP_TOKENS[steps], "--no-enable-prefix-caching")
        file = self.folder / f"cluster-{steps}.yaml"
        with Machines(MACHINES, None, None, zones=("east",), head_cores=HEAD_CORES) as machines:
            machines.enter()
            self.cluster = Cluster(machines, self.program, self.model, self.folder / steps, "live",
                                   serve, WORKER)
            if not self.answers:
                self.expect()
            self.cluster.start("left", first_plan(self.folder, "left", self.layers))
            self.cluster.describe(file)
            self.write_plans(file)
            for layout in (name for name, of in LAYOUTS.items() if of == steps):
                self.cluster.apply(self.folder / f"{layout}.yaml")
                for load in LOADS:
                    rows[load.name, layout] = self.measure(layout, file, load)
                self.check(f"{layout}: the questions",
                           self.cluster.api.ask_all(self.questions), self.answers)
                if layout == "apart":
                    advice.update({load.name: self.advice(file, load) for load in LOADS})
            if steps == "whole":
                self.cluster.apply(self.folder / "apart.yaml")
                self.kill_one()

    def run(self):
        self.answers = []
        rows, advice = {}, {}
        for steps in STEP_TOKENS:
            self.with_steps(steps, rows, advice)
        return self.table(rows, advice)

    @staticmethod
    def table(rows, advice):
        bars = [Bar(f"{load}: {layout}, share within the limits", forecast, measured,
                    f"within {OFF_MAX:.0%} of all requests", abs(forecast - measured) <= OFF_MAX)
                for (load, layout), (forecast, measured) in rows.items()]
        for load in LOADS:
            measured = {layout: rows[load.name, layout][1] for layout in LAYOUTS}
            apart, together = measured["apart"], max(measured["together"], measured["chunked"])
            advised, other = (apart, together) if advice[load.name] else (together, apart)
            bars.append(Bar(f"{load.name}: the advice", "apart" if advice[load.name] else "together",
                            max(measured, key=measured.get),
                            f"the best or within {ADVICE_OFF_MAX:.0%} of it",
                            advised >= other - ADVICE_OFF_MAX))
        return bars


if __name__ == "__main__":
    sys.exit(Roles(__doc__, runs=1).main())
