"""The real program on a free port of the loopback interface, and the base of the clients' tests."""
import json
import os
import re
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request

BINARY = os.environ["MILLRACE_BINARY"]
MODEL = os.environ["MILLRACE_MODEL"]
START_LIMIT_S = 60
STOP_LIMIT_S = 60
POST_LIMIT_S = 60


class Server:
    """Serves from its construction until `stop`."""

    def __init__(self, *flags, model=MODEL):
        self.lines = []
        self.process = subprocess.Popen(
            [BINARY, "serve", str(model), "--host", "127.0.0.1", "--port", "0", "--served-model-name",
             "demo", *flags], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        try:
            self.url = self.wait_for_url()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def give_up(self, why):
        raise AssertionError(f"the server {why}:\n" + "".join(self.lines))

    def wait_for_url(self):
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            found = re.search(r"Serving demo on (http://127\.0\.0\.1:\d+)", "".join(self.lines))
            if found:
                return found.group(1)
            if self.process.poll() is not None:
                self.give_up(f"exited with {self.process.returncode}")
            time.sleep(0.02)
        return self.give_up("does not serve")

    def counters(self, key="none"):
        """What /metrics counts: {name with its labels: value}."""
        request = urllib.request.Request(f"{self.url}/metrics",
                                         headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return {name: float(value) for name, _, value in (
            line.rpartition(" ") for line in lines if line and not line.startswith("#"))}

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=10) as reply:
                return reply.status == 200
        except urllib.error.HTTPError:
            return False

    def wait_until_ready(self):
        end = time.monotonic() + START_LIMIT_S
        while not self.is_ready():
            if time.monotonic() > end:
                self.give_up("does not become ready")
            time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.stop()

    def stop(self):
        """Its exit status: 0 after a clean end."""
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(10)
        self.process.stdout.close()
        return self.process.returncode


class ClientTest(unittest.TestCase):
    """One server for all tests of a class. `base_url` is what clients are given."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.base_url = f"{cls.server.url}/v1"

    @classmethod
    def post(cls, path, body, limit_s=POST_LIMIT_S):
        """Status and object of the answer, without a client."""
        request = urllib.request.Request(f"{cls.server.url}/{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=limit_s) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    @classmethod
    def likelier(cls, texts, by):
        """A `logit_bias` towards the tokens of these texts."""
        bias = {}
        for text in texts:
            _, reply = cls.post("tokenize", {"prompt": text, "add_special_tokens": False,
                                             "parse_special": True})
            bias.update({str(token): by for token in reply["tokens"]})
        return bias

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}:\n" + "".join(cls.server.lines)
