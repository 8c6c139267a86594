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
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
PAGE = (SOURCE / "docs" / sys.argv[3]).read_text()
BRIDGE = f"mrb{os.getpid() % 10000}"
ON_MACHINE = r"\*\*On (\d+\.\d+\.\d+\.\d+):\*\*"
MACHINES = sorted(set(re.findall(ON_MACHINE, PAGE)))
# The machines of the second kind, where a page has two.
SMALL = {"10.77.0.4", "10.77.0.5"}
LIMIT_S = 120
SKIPPED = 77


def sh(command):
    subprocess.run(command, shell=True, check=True, capture_output=True)


def space(machine):
    return f"{BRIDGE}-{machine.rsplit('.', 1)[1]}"


def make_network():
    sh(f"ip netns add {BRIDGE} && ip -n {BRIDGE} link add br0 type bridge && "
       f"ip -n {BRIDGE} link set br0 up")
    for machine in MACHINES:
        name = space(machine)
        sh(f"ip netns add {name} && ip -n {name} link set lo up && "
           f"ip -n {name} link add eth0 type veth peer name port{name[-1]} netns {BRIDGE} && "
           f"ip -n {name} addr add {machine}/24 dev eth0 && ip -n {name} link set eth0 up && "
           f"ip -n {BRIDGE} link set port{name[-1]} master br0 up")


def remove_network():
    for name in [space(m) for m in MACHINES] + [BRIDGE]:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


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
    def __init__(self, folder):
        self.folder = folder
        self.background = []
        self.environment = {**os.environ, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}

    def run(self, machine, command):
        words = ["ip", "netns", "exec", space(machine), "sh", "-c"]
        # The machines share one file system, where each has its own place for sockets and profiles.
        own = self.folder / space(machine)
        own.mkdir(mode=0o700, exist_ok=True)
        environment = {**self.environment, "XDG_RUNTIME_DIR": str(own), "XDG_CACHE_HOME": str(own)}
        if "millrace worker" in command:
            environment["MILLRACE_THREADS"] = "1" if machine in SMALL else "2"
        if command.endswith("&"):
            log = open(self.folder / f"log-{len(self.background)}", "w", encoding="utf-8")
            process = subprocess.Popen([*words, "exec " + command[:-1]], cwd=self.folder,
                                       env=environment, stdout=log, stderr=log)
            self.background.append((command, process, log))
            time.sleep(1)
            return ""
        done = subprocess.run([*words, command], cwd=self.folder, env=environment, text=True,
                              capture_output=True, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{command}\n{done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout

    def logs(self):
        return "\n".join(f"-- {command}\n" + (self.folder / f"log-{i}").read_text()
                         for i, (command, _, _) in enumerate(self.background))

    def stop(self):
        for _, process, _ in reversed(self.background):
            process.send_signal(signal.SIGKILL)
        for _, process, log in self.background:
            process.wait()
            log.close()


def completion(cluster, tokens):
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0,
                       "ignore_eos": True})
    answer = cluster.run(MACHINES[0], "curl -s --max-time 100 http://127.0.0.1:8000/v1/completions "
                                      f"-H 'Content-Type: application/json' -d '{body}'")
    return json.loads(answer)["choices"][0]["text"]


def cut_links(cluster, expected, tokens):
    """While it answers, a worker's cable is out for longer than it is waited for."""
    command = ["ip", "-n", BRIDGE, "link", "set", "port3"]
    cutter = subprocess.Popen(
        ["sh", "-c", f"sleep 0.05; {' '.join(command)} down; sleep 6; {' '.join(command)} up"])
    begin = time.monotonic()
    text = completion(cluster, tokens)
    took = time.monotonic() - begin
    cutter.wait()
    if text != expected:
        raise AssertionError(f"after a cut link:\n{text}\ninstead of\n{expected}\n{cluster.logs()}")
    print(f"link cut for 6 s: the same answer after {took:.1f} s", flush=True)


def main():
    programs = ["ip"] + (["etcd"] if "etcd" in PAGE else [])
    if os.geteuid() != 0 or not all(shutil.which(program) for program in programs):
        print("needs root and", ", ".join(programs))
        return SKIPPED
    try:
        make_network()
    except subprocess.CalledProcessError as error:
        remove_network()
        print("no network namespaces here:", error.stderr.decode())
        return SKIPPED
    with tempfile.TemporaryDirectory() as temporary:
        cluster = Cluster(pathlib.Path(temporary))
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
            remove_network()
    return 0


if __name__ == "__main__":
    sys.exit(main())
