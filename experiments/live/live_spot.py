#!/usr/bin/env python3
"""SpotServe's availability segments replayed on real workers: Millrace with notices and its autopilot,
rerouting, and restart-and-reload, all on the same engine and under the same requests.

usage: experiments/run live_spot [--json] [--quick] [--keep DIR]
"""
import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import statistics
import sys
import threading
import time

from cluster import PORT, Api, Cluster, questions
from driver import Driver, first_plan, processor_ticks
from machines import LOUD_SHARES, Machine, Machines
from spot_cloud import (COMPRESSED, MACHINES_PER_WORKER, NOTICE_S, arrivals, read_segment,
                        usd_per_100k_tokens)

from harness.http import UnixConnection, ask, objects, send
from harness.waiting import wait_for

DATA = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"
SEGMENTS = {"A": "trace_0304_real.A_S.jsonl", "B": "trace_0506_real.B_S.jsonl"}
# P99 of Reparallelization and of Rerouting divided by SpotServe's, GPT-20B, from the artifact.
PAPER = {("A", "restart"): 61.287 / 46.108, ("A", "rerouting"): 51.008 / 46.108,
         ("B", "restart"): 56.284 / 37.083, ("B", "rerouting"): 99.115 / 37.083}
LOADS = ("poisson", "gamma")
SYSTEMS = ("millrace", "rerouting", "restart")
CORES = 0.15            # of a processor, for each worker
MEMORY_MIB = 205        # less than the whole model needs, so a pipeline takes two workers
RATE = 2.0              # requests/s
WORDS, TOKENS = 40, 24  # of a prompt and of an answer
STAGES = 2
KINDS = 24              # different requests
WORKERS = [f"w{i}" for i in range(7)]
RESERVE_S = 1           # that a worker keeps of a notice for itself
ANSWER_LIMIT_S, RETRY_S = 180, 0.1
SERVE = ("--max-num-seqs", 32, "--max-model-len", 256, "--max-num-batched-tokens", 128,
         "--no-enable-prefix-caching")
WORKER = ("--kv-cache-memory", "48MiB", "--max-model-len", 256)
AUTOPILOT = ("--autopilot", "act", "--autopilot-window", 2, "--autopilot-verify", 5)
PRICE = ("--spot", "--price", "1.9046 USD/h")


@dataclasses.dataclass
class Row:
    segment: str
    load: str
    system: str
    requests: int
    p50_s: float
    p99_s: float
    usd_per_100k_tokens: float
    tokens_lost: int
    restarts: int
    changes: int
    moved_bytes: int
    replays: int


class Clients:
    """Requests at their times, each asked again from the beginning when its stream breaks off."""

    def __init__(self, requests, at_s, expected):
        self.requests, self.at_s, self.expected = requests, at_s, expected
        self.lock = threading.Lock()
        self.latency_s, self.lost, self.wrong = [], 0, []

    def read(self, request):
        """The text, or None when the stream broke off, and the tokens that came."""
        text, tokens = "", 0
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            with Api(PORT).connect() as to:
                reply = send(to, "POST", "/v1/completions", {**request, "stream": True})
                for event in objects(reply if reply.status == 200 else ()):
                    text += event["choices"][0]["text"]
                    tokens += 1
                return text, tokens
        return None, tokens

    def ask(self, number, began):
        time.sleep(max(0.0, began + self.at_s[number] - time.monotonic()))
        kind = number % len(self.requests)
        while True:
            text, tokens = self.read(self.requests[kind])
            if text is not None:
                break
            with self.lock:
                self.lost += tokens
            if time.monotonic() - began - self.at_s[number] > ANSWER_LIMIT_S:
                raise RuntimeError(f"request {number} is not answered")
            time.sleep(RETRY_S)
        with self.lock:
            self.latency_s.append(time.monotonic() - began - self.at_s[number])
            if text != self.expected[kind]:
                self.wrong.append((number, text))

    def run(self, began):
        with concurrent.futures.ThreadPoolExecutor(len(self.at_s)) as pool:
            for asked in [pool.submit(self.ask, i, began) for i in range(len(self.at_s))]:
                asked.result()


class System:
    """One of the three, on the same machines. Its processes end with `machines`."""

    def __init__(self, name, spot, folder):
        self.name, self.spot, self.machines = name, spot, spot.machines
        self.cluster = Cluster(spot.machines, spot.program, spot.model, folder, "live", SERVE, WORKER)
        self.held_s, self.since, self.restarts = 0.0, {}, 0
        self.notices = name == "millrace"

    def layout(self):
        pipelines = 2 if self.name != "restart" else max(1, len(self.since) // STAGES)
        words = ["--pipeline-parallel-size", STAGES, "--data-parallel-size", pipelines]
        return words + (list(AUTOPILOT) if self.name == "millrace" else [])

    def start_controller(self):
        self.controller = self.cluster.spawn("head", "controller", [
            "serve", self.spot.model, "--served-model-name", "live", "--cluster",
            f"sqlite:{self.cluster.folder}/state{self.restarts}", "--port", PORT, "--listen",
            f"{self.machines.address('head')}:7000", "--token", self.cluster.token, "--insecure",
            *self.layout(), *SERVE])

    def start_worker(self, name):
        notice = f"file:{self.cluster.folder}/notice-{name}" if self.notices else "none"
        self.cluster.workers[name] = self.cluster.spawn(name, name, [
            "worker", self.spot.model, "--join", f"{self.machines.address('head')}:7000", "--token",
            self.cluster.token, "--insecure", "--listen", f"{self.machines.address(name)}:7001",
            "--data-port", 7002, "--name", name, "--threads", 1, "--profile", self.spot.profile,
            "--notice-source", notice, *PRICE, *WORKER])

    def start(self, names):
        now = time.monotonic()
        self.since = {name: now for name in names}
        self.start_controller()
        for name in names:
            self.start_worker(name)
        self.cluster.api.wait_until_ready(self.controller)
        self.cluster.wait_for(lambda s: len(s["workers"]) == len(names) and not s["changing"])

    def come(self, name):
        """The machine has been asked for; its process can start."""
        self.since[name] = time.monotonic()
        if self.name != "restart":
            self.start_worker(name)

    def notice(self, name, seconds):
        if self.notices:
            (self.cluster.folder / f"notice-{name}").write_text(f"{seconds + RESERVE_S:.0f}s")

    def there(self, _):
        if self.name == "restart":
            self.restart()

    def gone(self, name):
        self.held_s += time.monotonic() - self.since.pop(name)
        self.cluster.kill(name)
        if self.name == "restart":
            self.restart()

    def restart(self):
        """Everything stops, and starts anew with the machines that there are."""
        self.restarts += 1
        for process in [self.controller, *self.cluster.workers.values()]:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.cluster.workers.clear()
        self.start_controller()
        for name in self.since:
            self.start_worker(name)

    def counters(self):
        status = self.cluster.status()
        decisions = json.loads(self.cluster.run("decisions", "--json", "--base-url",
                                                self.cluster.url))["decisions"] \
            if self.name == "millrace" else []
        return status["counters"], sum(d["decision"] == "change" for d in decisions)

    def stop(self):
        now = time.monotonic()
        self.held_s += sum(now - since for since in self.since.values())
        for process in [self.controller, *self.cluster.workers.values()]:
            if process.poll() is None:
                process.kill()
            process.wait()


def replay(segment, system, began):
    """The provider: machines come, get notice and go, at the times of the segment."""
    todo = []
    for change in segment.changes:
        before, at = began + change.at_s - change.notice_s, began + change.at_s
        if change.comes:
            todo += [(before, lambda c=change: system.come(c.name)),
                     (at, lambda c=change: system.there(c.name))]
        else:
            todo += [(before, lambda c=change: system.notice(c.name, c.notice_s)),
                     (at, lambda c=change: system.gone(c.name))]
    for at, act in sorted(todo, key=lambda one: one[0]):
        time.sleep(max(0.0, at - time.monotonic()))
        act()


class Spot(Driver):
    """Every system under every segment and load."""

    def expect(self):
        self.questions = questions(KINDS, WORDS, TOKENS)
        self.cluster = Cluster(self.machines, self.program, self.model, self.folder / "alone", "live",
                               SERVE, WORKER)
        with self.cluster.alone() as api:
            self.answers = api.ask_all(self.questions)

    def measure_profile(self):
        """Of one worker, within the limits of all: they are alike."""
        cluster = Cluster(self.machines, self.program, self.model, self.folder / "profile", "live",
                          SERVE, WORKER)
        plan = first_plan(cluster.folder, "w6", self.layers)
        self.machines.groups["w6"].forget_memory()
        cluster.controller = cluster.spawn("head", "controller", [
            "serve", self.model, "--served-model-name", "live", "--cluster",
            f"sqlite:{cluster.folder}/state", "--port", PORT, "--listen",
            f"{self.machines.address('head')}:7000", "--token", cluster.token, "--insecure",
            "--plan", plan, *SERVE])
        cluster.join("w6")
        cluster.api.wait_until_ready(cluster.controller)
        admin = next((cluster.folder / "run").rglob("admin-*.sock"))
        self.profile = self.folder / "profile.json"
        self.profile.write_text(wait_for(
            lambda: json.loads(ask(UnixConnection(admin), "GET", "/cluster/machines").text)[
                "workers"][0]["profile"], "the worker measures a profile", 120, 0.5))
        cluster.controller.kill()
        cluster.kill("w6")

    def measure(self, segment, load, name):
        system = System(name, self, self.folder / f"{segment.name}-{load}-{name}")
        clients = Clients(self.questions, arrivals(load, RATE, segment.end_s, ord(segment.name)),
                          self.answers)
        busy, _, total = processor_ticks()
        own = self.machines.parent.processor_s()
        try:
            system.start(segment.first)
            began = time.monotonic()
            # Processes end with the thread that started them: that is this one.
            with concurrent.futures.ThreadPoolExecutor(1) as beside:
                asked = beside.submit(clients.run, began)
                replay(segment, system, began)
                asked.result()
            counters, changes = system.counters()
        finally:
            system.stop()
        if clients.wrong:
            number, text = clients.wrong[0]
            raise RuntimeError(f"{name}, segment {segment.name}: request {number} was answered with "
                               f"{text!r}, not {self.answers[number % KINDS]!r}")
        self.compared += len(clients.latency_s)
        after, _, total_after = processor_ticks()
        others = after - busy - (self.machines.parent.processor_s() - own) * 100
        latency = sorted(clients.latency_s)
        row = Row(segment.name, load, name, len(latency), statistics.median(latency),
                  latency[int(0.99 * (len(latency) - 1) + 0.5)],
                  usd_per_100k_tokens(system.held_s, len(latency) * TOKENS), clients.lost,
                  system.restarts, changes, counters["moved_bytes"], counters["replays"])
        self.say(f"{row} (others {others / (total_after - total):.0%} of the processors)")
        return row

    def run(self):
        segments = [read_segment(name, self.data() / "spot" / "spotserve" / file)
                    for name, file in SEGMENTS.items()][:1 if self.args.quick else None]
        loads = LOADS[:1] if self.args.quick else LOADS
        machines = [Machine(name, "east", CORES, MEMORY_MIB) for name in WORKERS]
        with Machines(machines, None, None, zones=("east",),
                      machine_shares=LOUD_SHARES) as self.machines:
            self.machines.enter()
            self.expect()
            self.measure_profile()
            return [self.measure(segment, load, name) for segment in segments for load in loads
                    for name in SYSTEMS]

    @staticmethod
    def data():
        return pathlib.Path(os.environ.get("MILLRACE_DATA", DATA))

    def print_table(self, rows):
        if self.args.json:
            print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
            return
        print("| segment | arrivals | system | P50 | P99 | P99 against Millrace's | paper | USD per 1e5 "
              "tokens | tokens lost | KV moved | replays |\n|" + "---|" * 11)
        ours = {(r.segment, r.load): r.p99_s for r in rows if r.system == "millrace"}
        for r in rows:
            paper = PAPER.get((r.segment, r.system))
            print(f"| {r.segment} | {r.load} | {r.system} | {r.p50_s:.2f} s | {r.p99_s:.2f} s | "
                  f"{r.p99_s / ours[r.segment, r.load]:.2f} | {f'{paper:.2f}' if paper else ''} | "
                  f"{r.usd_per_100k_tokens:.2f} | {r.tokens_lost} | {r.moved_bytes / 1e6:.1f} MB | "
                  f"{r.replays} |")
        print(f"\nTime is compressed {COMPRESSED} times, and a worker stands for "
              f"{MACHINES_PER_WORKER} machines; notices are of {NOTICE_S / COMPRESSED:.2f} s. "
              f"{self.compared} answers were compared with those of one process: all are the same, "
              "byte for byte.")


if __name__ == "__main__":
    sys.exit(Spot(__doc__, runs=1).main())
