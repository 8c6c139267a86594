"""Hosts for the tests that run deployment files: network namespaces on a bridge of their own, with
the names that each would resolve. Needs root, `ip` and `curl`.
"""
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import namespaces  # noqa: E402
from harness.processes import Process, run  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

READY_LIMIT_S = 120


class Host:
    """A namespace. `names` lead to its address on every host of its network."""

    def __init__(self, name, address, names, folder):
        self.name, self.address, self.names = name, address, [name, *names]
        self.folder = folder / name
        self.folder.mkdir()
        self.network = None  # set by Network
        self.processes = []

    def start(self, words, environment, under=()):
        """`words` in this host with this environment alone. `under`: a command that runs them."""
        return self.add(Process(*self.network.enter(self.address), *under, *words, env=environment,
                                cwd=self.folder, log=self.folder / "log"))

    def add(self, process):
        self.processes.append(process)
        return process

    def run(self, words, environment=None):
        return run(*self.network.enter(self.address), *words, env=environment, status=None)

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
        def logs():
            return "\n".join(f"{h.name}:\n{h.said()[-3000:]}" for h in hosts)

        def ready():
            for process in [p for h in hosts for p in h.processes]:
                assert process.process.poll() is None, f"a process ended:\n{logs()}"
            return self.ask("GET", "/ready")[0] == 200
        wait_for(ready, lambda: f"ready: {self.ask('GET', '/ready')}\n{logs()}", READY_LIMIT_S, 0.2)

    def check_answers(self, key):
        body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        assert self.ask("POST", "/v1/completions", body)[0] == 401, "it needs a key"
        code, text = self.ask("POST", "/v1/completions", body, key)
        assert code == 200 and json.loads(text)["choices"][0]["text"], f"{code} {text}"


class Network(namespaces.Network):
    """Kills what still runs at the end."""

    def __init__(self, hosts):
        super().__init__("mrd", [host.address for host in hosts], ("ip", "curl"))
        self.hosts = hosts
        for host in hosts:
            host.network = self

    def __exit__(self, *_):
        for process in [p for h in self.hosts for p in h.processes]:
            process.kill()
        self.remove()

    def make(self):
        super().make()
        names = "127.0.0.1 localhost\n" + "".join(
            f"{h.address} {' '.join(h.names)}\n" for h in self.hosts)
        for address in self.addresses:
            etc = pathlib.Path("/etc/netns", self.space(address))  # `ip netns exec` lays it over /etc
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(names)

    def remove(self):
        super().remove()
        for address in self.addresses:
            shutil.rmtree(pathlib.Path("/etc/netns", self.space(address)), ignore_errors=True)
