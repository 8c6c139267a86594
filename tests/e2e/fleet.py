#!/usr/bin/env python3
"""A controller with a fleet: when the load rises, its provider starts real workers, and when it
falls, they are drained and released, while every stream is byte for byte what one process answers.
Providers that fail, hang and lie are reported once, and the service goes on.

Usage: fleet.py PROGRAM MODEL [unittest arguments]
"""
import json
import os
import pathlib
import re
import signal
import sys
import threading
import time
import unittest
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.cluster import JoinedCluster, answers_of_one_process  # noqa: E402

from fake_kubernetes import TOKEN, FakeKubernetes  # noqa: E402

PROGRAM, MODEL = take_paths(2)
LIMIT_S = 150
REQUESTS = [{"prompt": f"The mill by the river number {i}", "max_tokens": 40, "seed": i,
             "temperature": 0.9, "ignore_eos": True} for i in range(8)]

# A machine is a file in `machines`, with the process id of its worker. It stays until it is
# released, as a machine whose worker has ended does.
PROVIDER = """#!{python}
import json, os, pathlib, signal, subprocess, sys
folder = pathlib.Path({folder!r})
machines = folder / "machines"
machines.mkdir(exist_ok=True)
asked = json.load(sys.stdin)
with open(folder / "asked", "a") as log:
    log.write(json.dumps(asked) + "\\n")
kind, op = asked["kind"], asked["op"]
if (folder / ("fail-" + kind)).exists():
    print(json.dumps({{"error": "no quota"}}))
    sys.exit(3)
def alive(pid):
    try:
        return "Z" not in open(f"/proc/{{pid}}/stat").read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
if op == "acquire":
    for _ in range(asked["count"]):
        number = int((folder / "number").read_text()) if (folder / "number").exists() else 0
        (folder / "number").write_text(str(number + 1))
        name = f"{{kind}}-{{number}}"
        output = open(folder / (name + ".log"), "w")
        worker = subprocess.Popen({worker} + ["--name", name], stdin=subprocess.DEVNULL,
                                  stdout=output, stderr=output, start_new_session=True)
        (machines / name).write_text(str(worker.pid))
    print("{{}}")
elif op == "release":
    pid = int((machines / asked["machine"]).read_text())
    with open(folder / "released", "a") as log:
        log.write(f"{{asked['machine']}} {{alive(pid)}}\\n")
    if alive(pid):
        os.kill(pid, signal.SIGTERM)
    (machines / asked["machine"]).unlink()
    print("{{}}")
elif op == "price":
    print(json.dumps({{"price_usd_per_h": 0.5 if kind == "spot" else 2}}))
else:
    names = sorted(m.name for m in machines.iterdir() if m.name.startswith(kind + "-"))
    print(json.dumps({{"machines": [{{"id": name}} for name in names]}}))
"""


class Fleet(JoinedCluster):
    PROGRAM, MODEL = PROGRAM, MODEL

    @classmethod
    def setUpClass(cls):
        cls.expected = answers_of_one_process(PROGRAM, MODEL, REQUESTS)

    def setUp(self):
        super().setUp()
        worker = [PROGRAM, "worker", MODEL, "--join", self.joins, "--token", self.token,
                  "--threads", "1", "--notice-source", "none"]
        provider = self.folder / "machines.py"
        provider.write_text(PROVIDER.format(python=sys.executable, folder=str(self.folder),
                                            worker=repr(worker)))
        provider.chmod(0o755)
        self.provider = provider
        self.addCleanup(self.end_machines)
        self.wrong, self.answered = [], 0

    def end_machines(self):
        for machine in (self.folder / "machines").glob("*"):
            try:
                os.kill(int(machine.read_text()), signal.SIGKILL)
            except (OSError, ValueError):
                pass

    def serve_fleet(self, text):
        file = self.folder / "fleet.yaml"
        file.write_text(text)
        return self.serve("--fleet", file, "--data-parallel-size", "3")

    def ask(self, i):
        try:
            text = self.server.stream(REQUESTS[i % len(REQUESTS)])[0]
            if text != self.expected[i % len(REQUESTS)]:
                self.wrong.append((i, text))
        except Exception as error:
            self.wrong.append((i, repr(error)))
        self.answered += 1

    def load(self, per_s, until, limit_s=LIMIT_S):
        """Requests at a steady rate until the fleet is as wanted."""
        end, i, threads = time.monotonic() + limit_s, 0, []
        while not until(self.fleet()):
            if time.monotonic() > end:
                self.fail(json.dumps(self.fleet()) + self.server.output)
            threads.append(threading.Thread(target=self.ask, args=(i,)))
            threads[-1].start()
            time.sleep(1 / per_s)
            i += 1
        for thread in threads:
            thread.join()

    def fleet(self):
        return self.server.status()["fleet"]

    def kind(self, name):
        return next(k for k in self.fleet()["kinds"] if k["name"] == name)

    def metrics(self):
        """Those of a fleet."""
        names = "millrace_(wanted|fleet)_workers|millrace_cost|millrace_usd"
        lines = self.server.get("/metrics")[1].splitlines(keepends=True)
        return "".join(line for line in lines if re.match(names, line))

    def asked(self, op, kind):
        lines = (self.folder / "asked").read_text().splitlines()
        return [a for a in map(json.loads, lines) if (a["op"], a["kind"]) == (op, kind)]

    def nothing_was_lost(self):
        self.assertEqual(self.wrong, [])
        self.assertEqual(self.server.status()["counters"]["failed_by_losses"], 0)

    def test_follows_the_load(self):
        server = self.serve_fleet(f"""
cool_down: 4 s
headroom: 1
budget: 10 USD/h
kinds:
  - {{name: spot, provider: "exec:{self.provider}", spot: true, min: 1, max: 3,
     requests: 1 req/s, startup: 60 s}}
""")
        server.wait_until_ready()
        server.wait_for_status(lambda status: status["fleet"]["kinds"][0]["serving"] == 1)
        self.load(2, lambda fleet: fleet["kinds"][0]["serving"] > 1)
        self.load(0.2, lambda fleet: (fleet["kinds"][0]["serving"] == 1 and
                                      fleet["kinds"][0]["draining"] == 0))
        self.nothing_was_lost()
        self.assertGreater(self.answered, 3)
        released = (self.folder / "released").read_text().splitlines()
        self.assertIn(len(released), (1, 2))
        self.assertEqual([line for line in released if "True" in line], [],
                         "no worker runs on a machine that is released")
        self.assertEqual(len(server.status()["workers"]), 1)
        self.shows(server)

    def shows(self, server):
        metrics = self.metrics()
        for pattern in (r'wanted_workers\{.*kind="spot"\} 1\n',
                        r'fleet_workers\{.*kind="spot",state="serving"\} 1\n',
                        r"cost_usd_per_hour\{.*\} 0\.5\n",
                        r'usd_per_million_tokens\{.*window="hour"\} \d'):
            self.assertRegex(metrics, pattern)
        fleet = self.fleet()
        self.assertEqual(fleet["usd_per_h"], 0.5)
        self.assertGreater(fleet["usd_per_million_tokens_last_hour"], 0)
        shown = self.run_ok("fleet", "--base-url", self.url)
        self.assertRegex(shown, r"\nspot +exec +0\.5 +1 +1 +0 +0 +0\n")
        self.assertIn("asks for", shown)
        self.assertIn("drains spot-", shown)
        self.assertEqual(json.loads(self.run_ok("fleet", "--json", "--base-url", self.url))["kinds"],
                         fleet["kinds"])

    def test_providers_that_fail_are_said_once(self):
        (self.folder / "fail-spot").touch()
        server = self.serve_fleet(f"""
cool_down: 4 s
kinds:
  - {{name: spot, provider: "exec:{self.provider}", price: 0.5 USD/h, spot: true, max: 2,
     requests: 1 req/s}}
  - {{name: hangs, provider: "exec:sleep 1000", price: 0.1 USD/h, max: 2, requests: 1 req/s,
     timeout: 1 s}}
  - {{name: lies, provider: "exec:echo nonsense", price: 0.1 USD/h, max: 2, requests: 1 req/s}}
  - {{name: ondemand, provider: "exec:{self.provider}", price: 2 USD/h, min: 1, max: 2,
     requests: 5 req/s}}
""")
        server.wait_until_ready()
        end = time.monotonic() + 20
        while time.monotonic() < end:  # they are asked again and again
            self.ask(0)
        self.nothing_was_lost()
        self.assertGreater(len(self.asked("list", "spot")), 1)
        for said in ("spot: .*no quota", "hangs: .*has not ended after 1 s", "lies: .*nonsense"):
            self.assertEqual(len(server.said(said)), 1, server.output)
        shown = self.run_ok("fleet", "--base-url", self.url)
        self.assertIn("no quota", shown)
        self.assertGreaterEqual(self.kind("ondemand")["serving"], 1)
        (self.folder / "fail-spot").unlink()
        server.wait_for_status(lambda status: status["fleet"]["kinds"][0]["trouble"] == "")
        server.wait_for("spot: the provider does again")

    def test_scales_a_stateful_set(self):
        (self.folder / "api.token").write_text(TOKEN + "\n")
        api = FakeKubernetes(
            {"serving/millrace-spot": 0},
            start=lambda name: self.join(name, "--notice-source", "kubernetes", "--grace", "30s"),
            stop=lambda pod: pod.stop())
        self.addCleanup(api.close)
        api.conflicts = 1
        server = self.serve_fleet(f"""
cool_down: 4 s
headroom: 1
kubernetes: {{endpoint: "{api.url}", token_file: "{self.folder}/api.token", namespace: serving}}
kinds:
  - {{name: spot, provider: "kubernetes:millrace-spot", price: 0.5 USD/h, spot: true, min: 1, max: 2,
     requests: 1 req/s, timeout: 2 s}}
""")
        server.wait_until_ready()
        self.load(2, lambda fleet: fleet["kinds"][0]["serving"] == 2)
        api.delay_s = 5  # longer than the timeout
        server.wait_for_status(lambda status: "no answer within 2 s" in
                               status["fleet"]["kinds"][0]["trouble"])
        api.delay_s = 0
        api.refuse = api.garbage = 1
        self.load(0.2, lambda fleet: (fleet["kinds"][0]["serving"] == 1 and
                                      fleet["kinds"][0]["draining"] == 0))
        self.nothing_was_lost()
        self.assertEqual(api.patches, [1, 2, 1])
        self.assertEqual([w["name"] for w in server.status()["workers"]], ["millrace-spot-0"])
        self.assertEqual(len(server.said("no answer within 2 s")), 1)

    def test_gauges_without_a_provider(self):
        server = self.serve_fleet("""
cool_down: 4 s
kinds:
  - {name: gpu, provider: none, price: 1 USD/h, min: 1, max: 3, requests: 1 req/s, startup: 2 s}
""")
        self.join("gpu-0")
        server.wait_until_ready()
        self.load(2.6, lambda fleet: fleet["kinds"][0]["wanted"] == 3)
        self.assertRegex(self.metrics(), r'wanted_workers\{.*kind="gpu"\} 3\n')
        self.assertEqual(self.wrong, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
