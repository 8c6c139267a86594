#!/usr/bin/env python3
"""Runs the pods of deploy/kubernetes with their own options, environment, names and certificates:
each is a network namespace with the addresses that the cluster's DNS would give. The model is
split over both workers. Needs root (for `ip netns`).

Usage: kubernetes_run_test.py PROGRAM MODEL
"""
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import tempfile

import yaml

from hosts import Host, Network

from harness.cases import ROOT, take_paths
from harness.namespaces import skip_if_unavailable
from harness.processes import run

PROGRAM, MODEL = take_paths(2)
FOLDER = ROOT / "deploy" / "kubernetes"


class Pod(Host):
    """A replica of a StatefulSet."""

    def __init__(self, each, number, address, folder):
        name, service = f"{each['metadata']['name']}-{number}", each["spec"]["serviceName"]
        super().__init__(name, address, [f"{name}.{service}{domain}" for domain in (
            "", ".millrace.svc", ".millrace.svc.cluster.local")], folder)
        spec = each["spec"]["template"]["spec"]
        self.container = spec["containers"][0]
        self.secrets = {v["name"]: v["secret"]["secretName"]
                        for v in spec["volumes"] if "secret" in v}
        self.grace_s = spec["terminationGracePeriodSeconds"]
        self.environment = {}

    def path(self, text, secrets):
        """`text` with the folders of this test in place of the volumes' mounts."""
        for mount in sorted(self.container["volumeMounts"], key=lambda m: -len(m["mountPath"])):
            volume, there = mount["name"], mount["mountPath"]
            if volume == "models":
                text = re.sub(rf"^{there}/\S+", MODEL, text)
                continue
            here = secrets / self.secrets[volume] if volume in self.secrets else self.folder / volume
            here.mkdir(exist_ok=True)
            text = re.sub(rf"(?<![\w/]){re.escape(there)}(?=/|$)", str(here), text)
        return text

    def start_container(self, secrets, *more):
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        for variable in self.container.get("env", []):
            value = variable.get("value", self.name)  # the one other is the pod's name
            self.environment[variable["name"]] = self.path(value, secrets)
        words = [self.path(a.replace("$(POD_NAME)", self.name), secrets)
                 for a in self.container["args"]]
        self.start([PROGRAM, *words, *more], self.environment)


def make_secrets(kustomization, text, folder):
    """By the commands that kustomization.yaml names, in the place of its folder."""
    commands = re.sub(r"\\\n# *", "", text)
    for line in re.findall(r"^# +(millrace .*)$", commands, re.M):
        words = shlex.split(line.replace("deploy/kubernetes/", f"{folder}/made/"))
        run(PROGRAM, *words[1:])
    for secret in kustomization["secretGenerator"]:
        (folder / secret["name"]).mkdir()
        for entry in secret["files"]:
            key, _, source = entry.partition("=")
            shutil.copy(folder / "made" / source, folder / secret["name"] / key)


def check(pods, key):
    pods[0].check_answers(key)
    status = pods[0].run([PROGRAM, "status"], pods[0].environment)
    assert status.returncode == 0, status.stderr
    for pod in pods[1:]:
        assert pod.name in status.stdout, status.stdout
        assert "does not reach itself" not in pod.said(), pod.said()
    print(status.stdout)


def follow(folder):
    text = (FOLDER / "kustomization.yaml").read_text()
    kustomization = yaml.safe_load(text)
    objects = [o for name in kustomization["resources"]
               for o in yaml.safe_load_all((FOLDER / name).read_text())]
    sets = {o["metadata"]["name"]: o for o in objects if o["kind"] == "StatefulSet"}
    pods = [Pod(sets["millrace-controller"], 0, "10.78.0.2", folder)]
    pods += [Pod(sets["millrace-worker"], i, f"10.78.0.{3 + i}", folder)
             for i in range(sets["millrace-worker"]["spec"]["replicas"])]
    secrets = folder / "secrets"
    (secrets / "made").mkdir(parents=True)
    make_secrets(kustomization, text, secrets)
    with Network(pods):
        pods[0].start_container(secrets, "--pipeline-parallel-size", str(len(pods) - 1))
        for pod in pods[1:]:
            # The demo model needs no 4 GiB, which this machine may not have.
            pod.start_container(secrets, "--kv-cache-memory", "64MiB", "--no-measure-profile")
        pods[0].wait_until_ready(pods)
        check(pods, (secrets / "millrace-api-key" / "key").read_text().strip())
        for pod in reversed(pods):
            pod.processes[0].send_signal(signal.SIGTERM)
        for pod in pods:
            assert pod.processes[0].process.wait(pod.grace_s) == 0, f"{pod.name}:\n{pod.said()[-3000:]}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        follow(pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(skip_if_unavailable(main))
