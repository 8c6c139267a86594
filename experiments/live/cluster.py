"""A cluster of `millrace` processes on unlike machines: the controller on the head, a worker on each
machine; what it serves, and what one process answers to the same requests.
"""
import concurrent.futures
import contextlib
import json
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from harness import http  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

READY_LIMIT_S, DESCRIBED_LIMIT_S, COMMAND_LIMIT_S = 90, 180, 200
PORT, ALONE_PORT = 8000, 8001
BYTES_PER_HASH = 512  # tokens of a prompt for which a trace has one id


def make_trace(path, requests):
    """`requests`: (arrival in s, prompt tokens, output tokens), none of which share anything."""
    lines = [json.dumps({"timestamp": at * 1e3, "input_length": prompt, "output_length": output,
                         "hash_ids": [i * 8 + k for k in range(-(-prompt // BYTES_PER_HASH))]})
             for i, (at, prompt, output) in enumerate(requests)]
    path.write_text("\n".join(lines) + "\n")
    return path


def poisson(rate, count, prompt, output, seed):
    """Requests at `rate` per second (None: all at once) with lengths drawn from two ranges."""
    draw, at, found = random.Random(seed), 0.0, []
    for _ in range(count):
        found.append((at, draw.randint(*prompt), draw.randint(*output)))
        at += draw.expovariate(rate) if rate else 0.0
    return found


def questions(count, words, tokens, seed=0):
    """Requests whose answers have to be the same everywhere: greedy, and sampled with a seed."""
    draw = random.Random(seed)
    return [{"prompt": " ".join(draw.choice("sea ship wind old light harbour rope tide".split())
                                for _ in range(words)),
             "max_tokens": tokens, "ignore_eos": True, "seed": i,
             "temperature": 0 if i % 2 == 0 else 0.9} for i in range(count)]


class Api(http.Api):
    """The HTTP API on a port of the machine on whose network this process is."""
    limit_s = COMMAND_LIMIT_S

    def ask(self, request):
        return self.stream(request)[0]

    def ask_all(self, requests, meanwhile=lambda: None):
        """The answers, asked at the same time; `meanwhile` runs while they are."""
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            running = [pool.submit(self.ask, request) for request in requests]
            meanwhile()
            return [one.result() for one in running]

    def wait_until_ready(self, process):
        def ready():
            if process.poll() is not None:
                raise RuntimeError("the cluster does not become ready")
            return self.ready()
        wait_for(ready, "the cluster is ready", READY_LIMIT_S)


class Cluster:
    """Needs `machines.enter()` before it starts. Its processes end with `machines`."""

    def __init__(self, machines, program, model, folder, served_name, serve=(), worker=()):
        self.machines, self.program, self.model = machines, str(program), str(model)
        self.folder, self.name = pathlib.Path(folder), served_name
        self.serve_words, self.worker_words = list(serve), list(worker)
        self.workers, self.api = {}, Api(PORT)
        self.url = f"http://127.0.0.1:{PORT}"
        (self.folder / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.folder),
                            "XDG_RUNTIME_DIR": str(self.folder / "run"), "NO_COLOR": "1"}
        self.token = str(self.folder / "cluster.token")
        self.run("token", "--out", self.token, "--force")

    def spawn(self, machine, name, words, group=None):
        """A process that goes on; it writes NAME.log."""
        with open(self.folder / f"{name}.log", "a", encoding="utf-8") as log:
            return self.machines.start(machine, [self.program, *map(str, words)], group, stdout=log,
                                       stderr=log, env=self.environment, cwd=self.folder)

    def start(self, first, first_plan):
        """The controller, with a plan that needs only the worker `first`; then all workers."""
        self.controller = self.spawn("head", "controller", [
            "serve", self.model, "--served-model-name", self.name, "--cluster",
            f"sqlite:{self.folder}/state", "--port", PORT, "--listen",
            f"{self.machines.address('head')}:7000", "--token", self.token, "--insecure",
            "--plan", first_plan, *self.serve_words])
        self.join(first)
        self.api.wait_until_ready(self.controller)
        for name in self.machines.machines:
            if name != first:
                self.join(name)
        self.wait_for(lambda status: len(status["workers"]) == len(self.machines.machines))
        # The workers have said how much memory they have. Measuring a profile needs more than that,
        # because it does not fit into a processor's caches by design.
        for group in self.machines.groups.values():
            group.forget_memory()

    def wait_for(self, wanted):
        wait_for(lambda: wanted(self.status()),
                 lambda: f"the cluster comes to rest: {json.dumps(self.status())}", READY_LIMIT_S, 0.2)

    def join(self, name):
        zone = self.machines.machines[name].zone
        self.workers[name] = self.spawn(name, name, [
            "worker", self.model, "--join", f"{self.machines.address('head')}:7000", "--token",
            self.token, "--insecure", "--listen", f"{self.machines.address(name)}:7001",
            "--data-port", 7002, "--name", name, "--zone", zone, "--threads", 1,
            "--measure-profile", "--profile-cache", self.folder / f"cache-{name}",
            *self.worker_words])

    def kill(self, name):
        self.workers[name].kill()
        self.workers[name].wait()

    def run(self, *words, limit_s=COMMAND_LIMIT_S):
        """A command on the head; what it printed."""
        child = self.machines.start("head", [self.program, *map(str, words)], "load", text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    cwd=self.folder, env=self.environment)
        printed, error = child.communicate(timeout=limit_s)
        if child.returncode != 0:
            raise RuntimeError(f"millrace {' '.join(map(str, words))}: {error.strip()}")
        return printed

    def status(self):
        return json.loads(self.run("status", "--base-url", self.url, "--json"))

    def describe(self, path):
        """Waits until every worker has a profile and every link was probed."""
        text = self.run("cluster", "describe", "--base-url", self.url, "--wait", DESCRIBED_LIMIT_S,
                        limit_s=DESCRIBED_LIMIT_S + 60)
        nodes = len(self.machines.machines)
        found = text.count("\n    profile: "), text.count("# measured ")
        if "\nserver: {" not in text:
            raise RuntimeError(f"the description does not say how the server runs steps:\n{text}")
        # Each pair of workers, and each worker with the controller, in both directions.
        if found != (nodes, nodes * (nodes + 1)):
            raise RuntimeError(f"{found[0]} profiles and {found[1]} links were measured within "
                               f"{DESCRIBED_LIMIT_S} s")
        path.write_text(text)

    def apply(self, plan):
        self.run("plan", "apply", plan, "--base-url", self.url)

    def bench(self, trace, count, api=None, slo=()):
        """`millrace bench serve` with that trace; its JSON, in which every request was answered."""
        port = (api or self.api).port
        words = ["bench", "serve", "--base-url", f"http://127.0.0.1:{port}", "--model",
                 self.name, "--dataset-name", "trace", "--dataset-path", str(trace),
                 "--num-prompts", str(count), "--ignore-eos", "--save-result", "--save-detailed",
                 "--result-dir", str(self.folder), "--result-filename", "load.json",
                 "--disable-tqdm", *(["--slo", *slo] if slo else [])]
        load = self.spawn("head", "load", words, "load")
        if load.wait(COMMAND_LIMIT_S) != 0:
            raise RuntimeError("bench serve failed:\n" + (self.folder / "load.log").read_text())
        result = json.loads((self.folder / "load.json").read_text())
        if result["completed"] != count:
            raise RuntimeError(f"{count - result['completed']} of {count} requests failed")
        return result

    def simulate(self, plan, cluster, trace, slo=()):
        """What `millrace simulate` expects of the plan under that trace. The file of the cluster says
        how its server runs steps."""
        words = ["simulate", "--plan", plan, "--cluster", cluster, "--model", self.model,
                 "--workload", trace, "--json", "--no-progress",
                 *(["--slo", *slo] if slo else [])]
        return json.loads(self.run(*words))["runs"][0]

    def engine_words(self):
        """The options of the scheduler, for one process that serves as the cluster does."""
        known = {"--max-num-seqs", "--max-num-batched-tokens", "--max-model-len"}
        pairs = zip(self.serve_words, self.serve_words[1:])
        return [str(word) for option, value in pairs if option in known for word in (option, value)]

    @contextlib.contextmanager
    def alone(self):
        """One process that serves the same model, for as long as the block runs."""
        words = ["serve", self.model, "--served-model-name", self.name, "--port", ALONE_PORT,
                 "--threads", 2, "--no-enable-prefix-caching", *self.engine_words()]
        process = self.spawn("head", "alone", words, "load")
        api = Api(ALONE_PORT)
        try:
            api.wait_until_ready(process)
            yield api
        finally:
            process.kill()
            process.wait()
