"""ollama's client for Go, in the program of ollama_go. Skipped without a Go that can build it."""
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from server import ClientTest

SOURCE = pathlib.Path(__file__).with_name("ollama_go")
PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "build/clients/ollama_go/ollama_go"
BUILD_LIMIT_S = 900
RUN_LIMIT_S = 150
LOCAL = {**os.environ, "GOTOOLCHAIN": "local"}  # downloads no other go


def why_not():
    """Why the program cannot be built; None: it can."""
    if shutil.which("go") is None:
        return "there is no go"
    needed = re.search(r"^go (\S+)$", (SOURCE / "go.mod").read_text(), re.M).group(1)
    told = subprocess.run(["go", "env", "GOVERSION"], cwd=SOURCE.parent, env=LOCAL,
                          capture_output=True, text=True)
    found = re.match(r"go(\d+)\.(\d+)", told.stdout)
    if found is None or tuple(map(int, found.groups())) < tuple(map(int, needed.split(".")[:2])):
        return f"go is {told.stdout.strip() or 'broken'}, and ollama's client needs {needed}"
    return None


class OllamaGoTest(ClientTest):
    @classmethod
    def setUpClass(cls):
        reason = why_not()
        if reason is not None:
            print(f"ollama_go is skipped: {reason}", flush=True)
            raise unittest.SkipTest(reason)
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "build", "-mod=readonly", "-o", PROGRAM, "."], cwd=SOURCE, env=LOCAL,
                       check=True, timeout=BUILD_LIMIT_S)
        super().setUpClass()

    def test_the_program(self):
        ran = subprocess.run([PROGRAM, self.server.url], capture_output=True, text=True,
                             timeout=RUN_LIMIT_S)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertGreaterEqual(ran.stdout.count("ok: "), 20, ran.stdout)


if __name__ == "__main__":
    unittest.main()
