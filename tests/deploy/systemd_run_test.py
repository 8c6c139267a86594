#!/usr/bin/env python3
"""Runs the services of deploy/systemd with their own options, environment files, names and
certificates, as a user without rights: a server on one machine, and a controller with two workers
that hold half the model each. Needs root (for `ip netns` and `setpriv`).

Usage: systemd_run_test.py PROGRAM MODEL
"""
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import tempfile

from hosts import Host, Network

from harness.cases import ROOT, take_paths
from harness.namespaces import Unavailable, skip_if_unavailable
from harness.processes import run

BUILT, GIVEN = take_paths(2)
PROGRAM = MODEL = ""  # copies of both
FOLDER = ROOT / "deploy" / "systemd"
NOBODY = "65534"
RIGHTLESS = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
             "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
KV = {"MILLRACE_KV_CACHE_MEMORY": "64MiB"}  # several workers share this machine's memory


def lines(path):
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


class Machine(Host):
    """Where /etc/millrace, /var/lib/millrace and /run are folders of this test."""

    def __init__(self, name, address, folder):
        super().__init__(name, address, [], folder)
        for part in ("etc", "state", "run", "run/millrace", "credentials"):
            (self.folder / part).mkdir()
        self.environment = {}
        self.stop_s = 0

    def place(self, text, instance):
        for there, here in (("%d", "credentials"), ("/etc/millrace", "etc"),
                            ("/var/lib/millrace", "state"), ("/run", "run")):
            text = re.sub(rf"(?<![\w/]){re.escape(there)}(?=[/ ]|$)", str(self.folder / here), text)
        return text.replace("%H", self.name).replace("%i", instance).replace(
            "/usr/local/bin/millrace", PROGRAM)

    def start_service(self, unit, edits, instance=""):
        """`edits`: what the environment file tells its reader to set."""
        said = [line.partition("=") for line in lines(FOLDER / unit) if "=" in line]
        one = {key: value for key, _, value in said}
        self.environment = {"PATH": os.environ["PATH"]}
        environments = [value for key, _, value in said if key == "Environment"]
        file = FOLDER / pathlib.Path(one["EnvironmentFile"]).name
        for key, _, value in (line.partition("=") for line in [*environments, *lines(file)]):
            self.environment[key] = self.place(value, instance)
        self.environment |= edits
        for key, _, value in said:
            if key == "LoadCredential":
                name, _, source = value.partition(":")
                shutil.copy(self.place(source, instance), self.folder / "credentials" / name)
        for path in (self.folder / "credentials").iterdir():
            path.chmod(0o400)
        for key, part in (("StateDirectoryMode", "state"), ("RuntimeDirectoryMode", "run/millrace")):
            (self.folder / part).chmod(int(one.get(key, "0755"), 8))
        run("chown", "-R", f"{NOBODY}:{NOBODY}", self.folder)
        self.stop_s = float(one["TimeoutStopSec"])
        self.start(shlex.split(self.place(one["ExecStart"], instance)), self.environment, RIGHTLESS)

    def stop(self):
        self.processes[0].send_signal(signal.SIGTERM)
        assert self.processes[0].process.wait(self.stop_s) == 0, f"{self.name}:\n{self.said()[-3000:]}"


def install(folder):
    """Where the user can read it, as README.md does."""
    global PROGRAM, MODEL
    PROGRAM = str(shutil.copy(BUILT, folder / "millrace"))
    MODEL = str(shutil.copytree(GIVEN, folder / "model"))


def millrace(*args):
    return run(PROGRAM, *args).stdout


def one_machine(folder):
    machine = Machine("alone", "10.79.0.2", folder)
    key = millrace("token").strip()
    (machine.folder / "etc" / "api.keys").write_text(key + "\n")
    with Network([machine]):
        machine.start_service("millrace.service", {"MILLRACE_MODEL": MODEL, **KV})
        machine.wait_until_ready([machine])
        machine.check_answers(key)
        machine.stop()


def cluster(folder):
    machines = [Machine(name, f"10.79.0.{2 + i}", folder)
                for i, name in enumerate(("head", "left", "right"))]
    millrace("token", "--out", str(folder / "cluster.token"))
    millrace("certs", "--out", str(folder / "tls"), "--host", *(m.name for m in machines))
    for machine in machines:  # as deploy/README.md installs them
        role = "controller" if machine.name == "head" else "worker"
        for file in ("cluster.token", *(f"tls/{role}/{f}" for f in ("ca.crt", "tls.crt", "tls.key"))):
            shutil.copy(folder / file, machine.folder / "etc")
    with Network(machines):
        head = machines[0]
        head.start_service("millrace-controller.service", {
            "MILLRACE_MODEL": MODEL, "MILLRACE_LISTEN": f"{head.name}:7000",
            "MILLRACE_PIPELINE_PARALLEL_SIZE": "2"})
        for worker in machines[1:]:
            worker.start_service("millrace-worker@.service", {
                "MILLRACE_MODEL": MODEL, "MILLRACE_JOIN": f"{head.name}:7000",
                "MILLRACE_LISTEN": f"{worker.name}:0", **KV}, "0")
        head.wait_until_ready(machines)
        code, text = head.ask("POST", "/v1/completions",
                              {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})
        assert code == 200, f"{code} {text}"
        # By the command of deploy/README.md.
        status = head.run([*RIGHTLESS, PROGRAM, "status"], head.environment)
        assert status.returncode == 0, status.stderr
        assert "left-0" in status.stdout and "right-0" in status.stdout, status.stdout
        print(status.stdout)
        for machine in reversed(machines):
            machine.stop()


def main():
    if shutil.which("setpriv") is None:
        raise Unavailable("needs setpriv")
    for test in (one_machine, cluster):
        # Others may enter it: the services run as a user without rights.
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            install(pathlib.Path(folder))
            test(pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(skip_if_unavailable(main))
