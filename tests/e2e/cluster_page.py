#!/usr/bin/env python3
"""Follows a page of docs to the letter, as far as it says on which machine a command runs. The
machines are network namespaces here, and links can be cut. Needs root (for `ip netns`), and etcd
where the page does; leaves with 77 where it has not.

Usage: cluster_page.py PROGRAM SOURCE_DIR PAGE
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.namespaces import Network, skip_if_unavailable  # noqa: E402
from harness.processes import Process, run  # noqa: E402

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
PAGE = (SOURCE / "docs" / sys.argv[3]).read_text()
ON_MACHINE = r"\*\*On (\d+\.\d+\.\d+\.\d+):\*\*"
MACHINES = sorted(set(re.findall(ON_MACHINE, PAGE)))
# The machines of the second kind, where a page has two.
SMALL = {"10.77.0.4", "10.77.0.5"}
LIMIT_S = 120


def blocks():
    """(machine or None, command) of every line of the page's sh blocks."""
    machine = None
    inside = False
    for line in PAGE.splitlines():
        found = re.match(ON_MACHINE, line)
        if found:
            machine = found.group(1)
        if line.startswith("```"):
            inside = line == "```sh"
        elif inside:
            yield machine, line


class Cluster:
    def __init__(self, network, folder):
        self.network, self.folder = network, folder
        self.background = []  # commands and their processes
        # A page's workers measure profiles, unlike those of other tests.
        self.environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
                            "MILLRACE_MEASURE_PROFILE": "true"}

    def run(self, machine, command):
        words = [*self.network.enter(machine), "sh", "-c"]
        # The machines share one file system, where each has its own place for sockets and profiles.
        own = self.folder / machine
        own.mkdir(mode=0o700, exist_ok=True)
        environment = {**self.environment, "XDG_RUNTIME_DIR": str(own), "XDG_CACHE_HOME": str(own)}
        if "millrace worker" in command:
            environment["MILLRACE_THREADS"] = "1" if machine in SMALL else "2"
        if command.endswith("&"):
            self.background.append((command, Process(*words, "exec " + command[:-1],
                                                     cwd=self.folder, env=environment)))
            time.sleep(1)
            return ""
        done = run(*words, command, status=None, limit_s=LIMIT_S, cwd=self.folder, env=environment)
        if done.returncode != 0:
            raise AssertionError(f"{command}\n{done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout

    def logs(self):
        return "\n".join(f"-- {command}\n{process.output}" for command, process in self.background)

    def stop(self):
        for _, process in reversed(self.background):
            process.kill()


def completion(cluster, tokens):
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0,
                       "ignore_eos": True})
    answer = cluster.run(MACHINES[0], "curl -s --max-time 100 http://127.0.0.1:8000/v1/completions "
                                      f"-H 'Content-Type: application/json' -d '{body}'")
    return json.loads(answer)["choices"][0]["text"]


def cut_links(cluster, expected, tokens):
    """While it answers, a worker's cable is out for longer than it is waited for."""
    out, back = (cluster.network.cable("10.77.0.3", state) for state in ("down", "up"))
    cutter = subprocess.Popen(["sh", "-c", f"sleep 0.05; {out}; sleep 6; {back}"])
    begin = time.monotonic()
    text = completion(cluster, tokens)
    took = time.monotonic() - begin
    cutter.wait()
    if text != expected:
        raise AssertionError(f"after a cut link:\n{text}\ninstead of\n{expected}\n{cluster.logs()}")
    print(f"link cut for 6 s: the same answer after {took:.1f} s", flush=True)


def main():
    programs = ["ip", *(["etcd"] if "etcd" in PAGE else [])]
    with Network("mrb", MACHINES, programs) as network, tempfile.TemporaryDirectory() as temporary:
        cluster = Cluster(network, pathlib.Path(temporary))
        (cluster.folder / "models").symlink_to(SOURCE / "models")
        try:
            for machine, command in blocks():
                if machine is None:
                    continue  # one machine: cluster_faults.py
                print(f"{machine}$ {command}", flush=True)
                output = cluster.run(machine, command)
                print("  " + output.strip().replace("\n", "\n  "), flush=True)
            tokens = 200
            expected = completion(cluster, tokens)
            if completion(cluster, tokens) != expected:
                raise AssertionError("two answers to one question")
            cut_links(cluster, expected, tokens)
        except Exception:
            print(cluster.logs())
            raise
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(skip_if_unavailable(main))
