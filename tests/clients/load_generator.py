"""A load generator as a child process, against a server that has an API key and counts what it serves."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from server import Server

KEY = "sesame"
RUN_LIMIT_S = 240


class LoadGeneratorTest(unittest.TestCase):
    """One server for all tests of a class. `folder` is new for each test."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--api-key", KEY)
        cls.server.key = KEY
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.before = self.server.metrics()

    def counted(self, name):
        """By how much a counter of /metrics has grown in this test, over all its labels."""
        return self.server.metric(name) - self.before.sum(name)

    def run_program(self, *words, without=()):
        """What a program of this environment prints. One that hangs fails the test, and no hub answers."""
        program = pathlib.Path(sys.executable).with_name(words[0])
        env = {name: value for name, value in os.environ.items() if name not in without}
        return subprocess.run(
            [program, *map(str, words[1:])], cwd=self.folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=RUN_LIMIT_S, check=False,
            env={**env, "HF_HOME": str(self.folder / "hf"), "TMPDIR": str(self.folder),
                 "HF_ENDPOINT": "http://127.0.0.1:9", "OMP_NUM_THREADS": "1"}).stdout
