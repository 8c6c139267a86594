#!/usr/bin/env python3
"""Runs the pods of deploy/kubernetes with their own options, environment, names and certificates:
each is a network namespace with the addresses that the cluster's DNS would give. The model is
split over both workers. Needs root (for `ip netns`).

Usage: kubernetes_run_test.py PROGRAM MODEL
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import yaml

PROGRAM, MODEL = (str(pathlib.Path(a).resolve()) for a in sys.argv[1:3])
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
BRIDGE = f"mrk{os.getpid() % 10000}"
LIMIT_S = 120
SKIPPED = 77


def sh(command):
    done = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


class Pod:
    """A replica of a StatefulSet, as a namespace."""

    def __init__(self, each, number, address, folder):
        self.name = f"{each['metadata']['name']}-{number}"
        self.dns = [f"{self.name}.{each['spec']['serviceName']}{domain}"
                    for domain in ("", ".millrace.svc", ".millrace.svc.cluster.local")]
        self.container = each["spec"]["template"]["spec"]["containers"][0]
        self.secrets = {v["name"]: v["secret"]["secretName"]
                        for v in each["spec"]["template"]["spec"]["volumes"] if "secret" in v}
        self.grace_s = each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        self.address, self.folder = address, folder / self.name
        self.space = f"{BRIDGE}-{address.rsplit('.', 1)[1]}"
        self.folder.mkdir()
        self.process = None

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

    def start(self, secrets, *more):
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        for variable in self.container.get("env", []):
            value = variable.get("value", self.name)  # the one other is the pod's name
            environment[variable["name"]] = self.path(value, secrets)
        words = [self.path(a.replace("$(POD_NAME)", self.name), secrets)
                 for a in self.container["args"]]
        self.log = open(self.folder / "log", "w")
        self.environment = environment
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.space, PROGRAM, *words, *more], env=environment,
            stdout=self.log, stderr=subprocess.STDOUT, cwd=self.folder)

    def said(self):
        return (self.folder / "log").read_text()


def make_network(pods):
    hosts = "127.0.0.1 localhost\n" + "".join(f"{p.address} {' '.join(p.dns)}\n" for p in pods)
    sh(f"ip netns add {BRIDGE} && ip -n {BRIDGE} link add br0 type bridge && "
       f"ip -n {BRIDGE} link set br0 up")
    for pod in pods:
        end = pod.address.rsplit(".", 1)[1]
        sh(f"ip netns add {pod.space} && ip -n {pod.space} link set lo up && "
           f"ip -n {pod.space} link add eth0 type veth peer name port{end} netns {BRIDGE} && "
           f"ip -n {pod.space} addr add {pod.address}/24 dev eth0 && "
           f"ip -n {pod.space} link set eth0 up && "
           f"ip -n {BRIDGE} link set port{end} master br0 up")
        etc = pathlib.Path("/etc/netns") / pod.space  # `ip netns exec` lays it over /etc
        etc.mkdir(parents=True)
        (etc / "hosts").write_text(hosts)


def remove_network(pods):
    for name in [p.space for p in pods] + [BRIDGE]:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(pathlib.Path("/etc/netns") / name, ignore_errors=True)


def make_secrets(kustomization, text, folder):
    """By the commands that kustomization.yaml names, in the place of its folder."""
    commands = re.sub(r"\\\n# *", "", text)
    for line in re.findall(r"^# +(millrace .*)$", commands, re.M):
        words = shlex.split(line.replace("deploy/kubernetes/", f"{folder}/made/"))
        subprocess.run([PROGRAM, *words[1:]], check=True, capture_output=True)
    for secret in kustomization["secretGenerator"]:
        (folder / secret["name"]).mkdir()
        for entry in secret["files"]:
            key, _, source = entry.partition("=")
            shutil.copy(folder / "made" / source, folder / secret["name"] / key)


def ask(pod, method, path, body=None, key=None):
    """From a pod's namespace: status and text."""
    words = ["ip", "netns", "exec", pod.space, "curl", "-sS", "--max-time", "60", "-X", method, "-w",
             "\n%{http_code}", "-H", "Content-Type: application/json"]
    if key:
        words += ["-H", f"Authorization: Bearer {key}"]
    if body is not None:
        words += ["-d", json.dumps(body)]
    done = subprocess.run([*words, f"http://127.0.0.1:8000{path}"], check=False,
                          capture_output=True, text=True)
    text, _, code = done.stdout.rpartition("\n")
    return int(code or 0), text


def wait_until_ready(pods):
    end = time.monotonic() + LIMIT_S
    while True:
        code, text = ask(pods[0], "GET", "/ready")
        if code == 200:
            return
        for pod in pods:
            assert pod.process.poll() is None, f"{pod.name} ended:\n{pod.said()}"
        logs = "\n".join(f"{p.name}:\n{p.said()[-3000:]}" for p in pods)
        assert time.monotonic() < end, f"not ready: {code} {text}\n{logs}"
        time.sleep(0.2)


def check(pods, key):
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    assert ask(pods[0], "POST", "/v1/completions", body)[0] == 401, "it needs a key"
    code, text = ask(pods[0], "POST", "/v1/completions", body, key)
    assert code == 200 and json.loads(text)["choices"][0]["text"], f"{code} {text}"
    status = subprocess.run(["ip", "netns", "exec", pods[0].space, PROGRAM, "status"], check=False,
                            capture_output=True, text=True, env=pods[0].environment)
    assert status.returncode == 0, status.stderr
    for pod in pods[1:]:
        assert pod.name in status.stdout, status.stdout
        assert "does not reach itself" not in pod.said(), pod.said()
    print(status.stdout)


def main():
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("curl") is None:
        print("skipped: needs root, ip and curl")
        return SKIPPED
    text = (FOLDER / "kustomization.yaml").read_text()
    kustomization = yaml.safe_load(text)
    objects = [o for name in kustomization["resources"]
               for o in yaml.safe_load_all((FOLDER / name).read_text())]
    sets = {o["metadata"]["name"]: o for o in objects if o["kind"] == "StatefulSet"}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        pods = [Pod(sets["millrace-controller"], 0, "10.78.0.2", folder)]
        pods += [Pod(sets["millrace-worker"], i, f"10.78.0.{3 + i}", folder)
                 for i in range(sets["millrace-worker"]["spec"]["replicas"])]
        secrets = folder / "secrets"
        (secrets / "made").mkdir(parents=True)
        make_secrets(kustomization, text, secrets)
        try:
            make_network(pods)
        except AssertionError as error:
            remove_network(pods)
            print(f"skipped: network namespaces cannot be made here: {error}")
            return SKIPPED
        try:
            pods[0].start(secrets, "--pipeline-parallel-size", str(len(pods) - 1))
            for pod in pods[1:]:
                # The demo model needs no 4 GiB, which this machine may not have.
                pod.start(secrets, "--kv-cache-memory", "64MiB", "--no-measure-profile")
            wait_until_ready(pods)
            check(pods, (secrets / "millrace-api-key" / "key").read_text().strip())
            for pod in reversed(pods):
                pod.process.send_signal(signal.SIGTERM)
            for pod in pods:
                assert pod.process.wait(pod.grace_s) == 0, f"{pod.name}:\n{pod.said()[-3000:]}"
        finally:
            for pod in pods:
                if pod.process is not None and pod.process.poll() is None:
                    pod.process.kill()
                    pod.process.wait()
            remove_network(pods)
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
