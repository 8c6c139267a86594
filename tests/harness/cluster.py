"""Tests of clusters that workers join by hand: a folder with the store and the token, the controller, its
workers, and commands that call it."""
import os

from .cases import FolderTest
from .ports import free_port
from .processes import Process, Server, make_token, run

# Workers look for notices in the same way, whatever this machine looks like.
for variable in ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID"):
    os.environ.pop(variable, None)

# Two workers, a and b, that hold the whole demo model each.
REPLICAS = """format: 1
model: demo
layers: 4
stages:
  - {stage: 0, nodes: [a], layers: [0, 4]}
  - {stage: 1, nodes: [b], layers: [0, 4]}
edges:
  - {from: coordinator, to: 0, flow: 1 tokens/s}
  - {from: coordinator, to: 1, flow: 1 tokens/s}
  - {from: 0, to: coordinator, flow: 1 tokens/s}
  - {from: 1, to: coordinator, flow: 1 tokens/s}
"""


class JoinedCluster(FolderTest):
    """Subclasses set the program and the model. `self.server` is the server started last."""
    PROGRAM = MODEL = None

    def setUp(self):
        super().setUp()
        self.token = make_token(self.PROGRAM, self.folder)
        self.joins = f"127.0.0.1:{free_port()}"

    def run_ok(self, *words):
        """What a command printed, which ended well."""
        return run(self.PROGRAM, *words, cwd=self.folder).stdout

    def start(self, *words, **more):
        """Any server."""
        self.server = Server(self.PROGRAM, *words, **more)
        self.addCleanup(self.server.stop)
        self.url = self.server.url
        return self.server

    def serve(self, *words):
        """The controller."""
        return self.start("serve", self.MODEL, "--cluster", f"sqlite:{self.folder}/state",
                          "--listen", self.joins, "--token", self.token, *words)

    def join(self, name, *words, model=None, over=None):
        """`over`: another address that leads to the controller."""
        worker = Process(self.PROGRAM, "worker", model or self.MODEL, "--join", over or self.joins,
                         "--token", self.token, "--name", name, "--threads", "1", *words)
        self.addCleanup(worker.stop)
        return worker

    def wait_for(self, wanted, *limit):
        """A status of the controller that is as wanted."""
        return self.server.wait_for_status(wanted, *limit)


def answers_of_one_process(program, model, requests, *words):
    """What `serve` without a cluster answers to each of them."""
    server = Server(program, "serve", model, *words)
    try:
        server.wait_until_ready()
        return [server.stream(request)[0] for request in requests]
    finally:
        server.stop()
