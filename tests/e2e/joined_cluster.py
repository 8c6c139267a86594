"""What tests of clusters that workers join by hand share: a folder with the store and the token, the
controller, its workers, and commands that call it."""
import pathlib
import subprocess
import tempfile
import unittest

from cluster_processes import START_LIMIT_S, Process, Server, free_port

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


class JoinedCluster(unittest.TestCase):
    """Subclasses set the program and the model. `self.server` is the controller started last."""
    PROGRAM = MODEL = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.token = str(self.folder / "cluster.token")
        self.joins = f"127.0.0.1:{free_port()}"
        self.run_ok("token", "--out", self.token)

    def run_ok(self, *words):
        done = subprocess.run([self.PROGRAM, *map(str, words)], text=True, capture_output=True,
                              timeout=START_LIMIT_S, check=False, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def serve(self, *words):
        self.server = Server(self.PROGRAM, "serve", self.MODEL, "--cluster",
                             f"sqlite:{self.folder}/state", "--listen", self.joins, "--token",
                             self.token, *map(str, words))
        self.addCleanup(self.server.close)
        self.url = f"http://127.0.0.1:{self.server.port}"
        return self.server

    def join(self, name, *words, model=None, over=None):
        """`over`: another address that leads to the controller."""
        worker = Process(self.PROGRAM, "worker", model or self.MODEL, "--join", over or self.joins,
                         "--token", self.token, "--name", name, "--threads", "1",
                         *map(str, words))
        self.addCleanup(worker.stop)
        return worker

    def wait_for(self, wanted):
        """A status of the controller that is as wanted."""
        return self.server.wait_for_status(wanted)
