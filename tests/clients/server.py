"""The real program on a free port of the loopback interface, and the base of the clients' tests."""
import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import processes  # noqa: E402
from harness.http import Api  # noqa: E402

BINARY = os.environ["MILLRACE_BINARY"]
MODEL = os.environ["MILLRACE_MODEL"]


class Server(processes.Server):
    """Serves from its construction until `stop`."""

    def __init__(self, *flags, model=MODEL):
        super().__init__(BINARY, "serve", model, "--served-model-name", "demo", *flags)
        self.wait_until_ready()


class ClientTest(unittest.TestCase):
    """One server for all tests of a class. `base_url` is what clients are given."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.base_url = f"{cls.server.url}/v1"

    @classmethod
    def post(cls, path, body, limit_s=60):
        """Status and object of the answer, without a client."""
        api = Api(cls.server.port)
        api.limit_s = limit_s
        status, text = api.post(f"/{path}", body)
        return status, json.loads(text)

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
        assert status == 0, f"the server ended with {status}:\n{cls.server.output}"
