"""What options_test.py starts: servers of each kind, their workers, and ways to look at them from
outside."""
import contextlib
import http.client
import json
import pathlib
import re
import ssl
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from cluster_processes import AdminConnection, Process, free_port  # noqa: E402

MODEL = ROOT / "models" / "demo"
START_LIMIT_S = 120
WAIT_LIMIT_S = 60
POLL_S = 0.05


def wait_until(happens, what, limit_s=WAIT_LIMIT_S):
    """The first true value of `happens`."""
    end = time.monotonic() + limit_s
    while not (value := happens()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(POLL_S)
    return value


def run(program, *args, limit_s=WAIT_LIMIT_S):
    """The exit code and what was written to both streams."""
    done = subprocess.run([program, *map(str, args)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                          timeout=limit_s, check=False)
    return done.returncode, done.stdout


def options_in_help(program, command):
    """Each option of `millrace COMMAND --help`, and the default it shows (None: none)."""
    status, text = run(program, command, "--help")
    if status != 0:
        raise AssertionError(text)
    options, name = {}, None
    for line in text[text.index("Usage:"):].splitlines():
        head = re.match(r"  (-\S.*?|MODEL\b.*?)(?:  |$)", line)
        if head:
            names = re.findall(r"--(?:\[no-\])?([a-z][a-z-]*)", head.group(1))
            name = "MODEL" if head.group(1).startswith("MODEL") else "--" + names[-1]
            options[name] = ""
        elif not line.startswith(" " * 10):
            name = None
        if name:
            options[name] += " " + line.strip()
    found = {name: re.search(r"\[default: ([^]]*)\]", text) for name, text in options.items()}
    return {name: default and default.group(1) for name, default in found.items()}


class Running(Process):
    """One start of `serve`, `serve --cluster` or `up`."""

    def __init__(self, program, kind, folder, words, environment=None):
        self.program, self.kind, self.folder = program, kind, pathlib.Path(folder)
        self.api_key = None
        self.workers = {}
        self.served = threading.Event()
        environment = {"NO_COLOR": "1", "XDG_RUNTIME_DIR": self.folder, **(environment or {})}
        settings = [f"{name}={value}" for name, value in environment.items()]
        super().__init__("/usr/bin/env", *settings, program, kind.split()[0], *map(str, words))

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"Serving .* on (https?)://(\[?[^]/]*\]?):(\d+)(?:/[\w/]*)?(?:\"})?$",
                              line.strip())
            if found:
                self.scheme, self.host, self.port = found[1], found[2], int(found[3])
                self.served.set()

    def wait_until_ready(self):
        wait_until(lambda: self.served.is_set() or self.process.poll() is not None,
                   "it serves", START_LIMIT_S)
        if not self.served.is_set():
            raise AssertionError("it does not serve:\n" + self.output())
        wait_until(lambda: self.request("GET", "/ready")[0] == 200, "it is ready", START_LIMIT_S)

    def output(self):
        return "".join(list(self.lines))

    def connect(self):
        if self.scheme == "https":
            trusting = ssl._create_unverified_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=WAIT_LIMIT_S,
                                               context=trusting)
        return http.client.HTTPConnection(self.host, self.port, timeout=WAIT_LIMIT_S)

    def headers(self):
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def request(self, method, path, body=None, headers=None):
        """Status, headers, text."""
        headers = self.headers() if headers is None else headers
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body and json.dumps(body), headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read().decode()

    def json(self, path, body=None):
        status, _, text = self.request("POST" if body else "GET", path, body)
        if status != 200:
            raise AssertionError(f"{path}: {status} {text}")
        return json.loads(text)

    def complete(self, prompt="Once upon a time", **fields):
        return self.json("/v1/completions", {"prompt": prompt, "max_tokens": 4, **fields})

    def status(self):
        """Of the cluster, over the admin socket: its log line may be below --log-level."""
        path = self.folder / "millrace" / f"admin-{self.port}.sock"
        with contextlib.closing(AdminConnection(str(path))) as connection:
            connection.request("GET", "/cluster/status")
            return json.loads(connection.getresponse().read())

    def metric(self, name):
        """The sum of the metric's samples."""
        text = self.request("GET", "/metrics")[2]
        values = re.findall(rf"(?m)^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text)
        return sum(map(float, values))

    def steps(self):
        """The entries of the step log so far; the last line may still be written."""
        lines = (self.folder / "steps.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """Stops what is left of it, workers first when it has some of ours."""
        for worker in self.workers.values():
            worker.kill()
        if self.process.poll() is None:
            self.kill()
        else:
            self.forget()


def in_parallel(calls):
    """Starts all of them; the function that is returned waits, and fails where one has failed."""
    failures = []

    def call(function):
        try:
            function()
        except Exception as failure:  # to be raised where it is waited for
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(c,), daemon=True) for c in calls]
    for thread in threads:
        thread.start()

    def join():
        for thread in threads:
            thread.join(WAIT_LIMIT_S)
        for failure in failures:
            raise failure

    return join


def make_certificate(folder):
    """A certificate for 127.0.0.1 and 127.0.0.2 that signs itself, and its key."""
    certificate, key = folder / "http.crt", folder / "http.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj",
                    "/CN=options", "-days", "2", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return certificate, key


SYNC_COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static void count(void) {
  FILE* file = fopen(getenv("SYNC_COUNT_FILE"), "a");
  if (file) { fputc('.', file); fclose(file); }
}
int fdatasync(int fd) {
  count();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
int fsync(int fd) {
  count();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""


def count_syncs(folder):
    """The environment of a process whose calls of fsync and fdatasync are dots in a file."""
    source, library = folder / "syncs.c", folder / "syncs.so"
    source.write_text(SYNC_COUNTER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True,
                   capture_output=True)
    (folder / "syncs").write_text("")
    return {"LD_PRELOAD": library, "SYNC_COUNT_FILE": folder / "syncs"}


def syncs(folder):
    return (folder / "syncs").stat().st_size


def descendants(pid, word):
    """Processes by --name, of those below `pid` whose command line has `word`."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        if int(parent) == pid and word in words:
            found[words[words.index("--name") + 1]] = int(entry.name)
    return found


__all__ = ["MODEL", "ROOT", "Process", "Running", "count_syncs", "descendants", "free_port",
           "in_parallel", "make_certificate", "options_in_help", "run", "syncs", "wait_until"]
