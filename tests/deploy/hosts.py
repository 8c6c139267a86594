"""Hosts for the tests that run deployment files: network namespaces on a bridge of their own, with
the names that each would resolve. Needs root, `ip` and `curl`.
"""
import json
import os
import pathlib
import shutil
import subprocess
import time

SKIPPED = 77
READY_LIMIT_S = 120


class Unavailable(Exception):
    """Namespaces cannot be made here."""


def sh(command):
    done = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"{command}: {done.stderr}")
    return done.stdout


class Host:
    """A namespace. `names` lead to its address on every host of its network."""

    def __init__(self, name, address, names, folder):
        self.name, self.address, self.names = name, address, [name, *names]
        self.folder = folder / name
        self.folder.mkdir()
        self.space = None  # set by Network
        self.processes = []

    def start(self, words, environment, under=()):
        """`words` in this host with this environment alone. `under`: a command that runs them."""
        with open(self.folder / "log", "a") as log:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.space, *under, *words], env=environment, stdout=log,
                stderr=subprocess.STDOUT, cwd=self.folder)
        self.processes.append(process)
        return process

    def run(self, words, environment=None):
        return subprocess.run(["ip", "netns", "exec", self.space, *words], env=environment,
                              check=False, capture_output=True, text=True, timeout=60)

    def said(self):
        return (self.folder / "log").read_text()

    def ask(self, method, path, body=None, key=None):
        """Port 8000 of this host: status and text."""
        words = ["curl", "-sS", "--max-time", "50", "-X", method, "-w", "\n%{http_code}", "-H",
                 "Content-Type: application/json"]
        if key:
            words += ["-H", f"Authorization: Bearer {key}"]
        if body is not None:
            words += ["-d", json.dumps(body)]
        text, _, code = self.run([*words, f"http://127.0.0.1:8000{path}"]).stdout.rpartition("\n")
        return int(code or 0), text

    def wait_until_ready(self, hosts):
        end = time.monotonic() + READY_LIMIT_S
        while True:
            code, text = self.ask("GET", "/ready")
            if code == 200:
                return
            logs = "\n".join(f"{h.name}:\n{h.said()[-3000:]}" for h in hosts)
            for process in [p for h in hosts for p in h.processes]:
                assert process.poll() is None, f"a process ended:\n{logs}"
            assert time.monotonic() < end, f"not ready: {code} {text}\n{logs}"
            time.sleep(0.2)

    def check_answers(self, key):
        body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        assert self.ask("POST", "/v1/completions", body)[0] == 401, "it needs a key"
        code, text = self.ask("POST", "/v1/completions", body, key)
        assert code == 200 and json.loads(text)["choices"][0]["text"], f"{code} {text}"


class Network:
    """Raises Unavailable where namespaces cannot be made. Kills what still runs at the end."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.bridge = f"mrd{os.getpid() % 100000}"
        for host in hosts:
            host.space = f"{self.bridge}-{host.address.rsplit('.', 1)[1]}"

    def __enter__(self):
        if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("curl") is None:
            raise Unavailable("needs root, ip and curl")
        try:
            self.make()
        except Unavailable:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        for process in [p for h in self.hosts for p in h.processes]:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.remove()

    def make(self):
        names = "127.0.0.1 localhost\n" + "".join(
            f"{h.address} {' '.join(h.names)}\n" for h in self.hosts)
        sh(f"ip netns add {self.bridge} && ip -n {self.bridge} link add br0 type bridge && "
           f"ip -n {self.bridge} link set br0 up")
        for host in self.hosts:
            end = host.address.rsplit(".", 1)[1]
            sh(f"ip netns add {host.space} && ip -n {host.space} link set lo up && "
               f"ip -n {host.space} link add eth0 type veth peer name port{end} "
               f"netns {self.bridge} && "
               f"ip -n {host.space} addr add {host.address}/24 dev eth0 && "
               f"ip -n {host.space} link set eth0 up && "
               f"ip -n {self.bridge} link set port{end} master br0 up")
            etc = pathlib.Path("/etc/netns") / host.space  # `ip netns exec` lays it over /etc
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(names)

    def remove(self):
        for name in [h.space for h in self.hosts] + [self.bridge]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(pathlib.Path("/etc/netns") / name, ignore_errors=True)


def skip_if_unavailable(test):
    """The exit code of a test's main."""
    try:
        test()
    except Unavailable as why:
        print(f"skipped: {why}")
        return SKIPPED
    print("OK")
    return 0
