"""huggingface_hub and Millrace share one cache: each finds what the other has downloaded, from a
server that imitates the hub."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "e2e")]
from fake_hub import FakeHub, files_of  # noqa: E402

PROGRAM, MODEL = os.environ["MILLRACE_BINARY"], os.environ["MILLRACE_MODEL"]
NAME = "org/demo"
LIMIT_S = 120
PYTHON = """
import sys
import huggingface_hub
print(huggingface_hub.snapshot_download(sys.argv[1], revision=sys.argv[2],
                                        local_files_only=sys.argv[3] == "here"))
"""


class SharedCache(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.hub = FakeHub()
        self.addCleanup(self.hub.close)
        self.files = files_of(MODEL)
        self.hub.repositories[NAME] = {"main": self.files, "v1": self.files | {"x.txt": b"x"}}
        self.environment = os.environ | {
            "HF_HOME": folder.name, "HF_ENDPOINT": self.hub.url, "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def run_program(self, *words):
        done = subprocess.run(words, env=self.environment, input="Hello.\n", text=True,
                              capture_output=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def millrace(self, revision, *words):
        return self.run_program(PROGRAM, "chat", NAME, "--revision", revision, "--max-tokens", "4",
                                *words)

    def library(self, revision, where):
        return self.run_program(sys.executable, "-c", PYTHON, NAME, revision, where)

    def test_the_library_finds_what_millrace_downloaded(self):
        for revision in ("main", "v1", self.hub.commit(NAME, "v1")):
            self.millrace(revision)
            folder = pathlib.Path(self.library(revision, "here").strip())
            self.assertEqual(folder.name, self.hub.commit(NAME, revision))
            for name in ("config.json", "tokenizer.json", "model.safetensors"):
                self.assertEqual((folder / name).read_bytes(), self.files[name])

    def test_millrace_finds_what_the_library_downloaded(self):
        for revision in ("main", "v1"):
            self.library(revision, "hub")
            self.hub.requests.clear()
            self.millrace(revision, "--offline")
            self.millrace(revision)
            self.assertEqual(self.hub.requests, [])

    def test_each_adds_what_the_other_left_out(self):
        self.millrace("v1")
        self.hub.requests.clear()
        folder = pathlib.Path(self.library("v1", "hub").strip())
        self.assertEqual((folder / "x.txt").read_bytes(), b"x")
        self.assertEqual(self.hub.downloads("model.safetensors"), [])


if __name__ == "__main__":
    unittest.main()
