"""What ollama's client for Go sent, sent again without it. ollama_go/exchanges.json has the requests as
they were, the fields that the client's structs kept of the answers, and the types of the structs; `ollama_go
URL -record FILE` wrote it. Each answer must have those fields, in forms that Go's decoder takes.
"""
import copy
import json
import pathlib
import re
import unittest

from server import ClientTest

RECORDED = json.loads(pathlib.Path(__file__).with_name("ollama_go").joinpath("exchanges.json").read_text())
TYPES = RECORDED["types"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
CHECKS = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "time": lambda value: isinstance(value, str) and TIME.fullmatch(value) is not None,
    "any": lambda value: True,
}


def wrong(value, kind, where=""):
    """What Go's decoder would refuse, as lines."""
    if value is None:  # leaves the field as it is
        return []
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [line for i, item in enumerate(value) for line in wrong(item, kind[0], f"{where}[{i}]")]
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no object"]
        return [line for name, item in value.items() if name in kind
                for line in wrong(item, kind[name], f"{where}.{name}".lstrip("."))]
    return [] if CHECKS[kind](value) else [f"{where}: {value!r} is no {kind}"]


def member(value, path):
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def objects_of(exchange, body):
    """The objects that the client decodes into the struct of its answer."""
    if exchange["path"] in ("/api/tags", "/api/ps"):
        return json.loads(body)["models"]
    return [json.loads(line) for line in body.splitlines()]


class OllamaRecordedTest(ClientTest):
    def ask(self, exchange):
        # As they were: also without a Content-Type.
        body = json.dumps(exchange["body"]) if "body" in exchange else None
        with self.server.connect() as connection:
            connection.request(exchange["method"], exchange["path"], body, exchange["headers"])
            reply = connection.getresponse()
            return reply.status, reply.read().decode()

    def test_every_exchange(self):
        self.assertGreaterEqual(len(RECORDED["exchanges"]), 20)
        for exchange in RECORDED["exchanges"]:
            with self.subTest(exchange["name"]):
                status, body = self.ask(exchange)
                self.assertEqual(status, exchange["status"], body)
                if status != 200:
                    self.assertIsInstance(json.loads(body)["error"], str)
                if "answer" not in exchange:
                    continue
                objects = objects_of(exchange, body)
                lines = [line for one in objects for line in wrong(one, TYPES[exchange["answer"]])]
                self.assertEqual(lines, [])
                for path in exchange["kept"]:
                    self.assertTrue(any(member(one, path) for one in objects), f"{path} is empty: {body}")

    def test_the_check_can_fail(self):
        kind = {"a": "integer", "b": ["time"], "c": {"d": "string"}}
        right = {"a": 5, "b": ["2026-01-31T12:00:00Z"], "c": {"d": "x"}, "other": 1}
        self.assertEqual(wrong(right, kind), [])
        for path, value in (("a", 5.0), ("a", "5"), ("a", True), ("b", "x"), ("b", ["today"]), ("c", {"d": 5})):
            broken = copy.deepcopy(right)
            broken[path] = value
            self.assertEqual(len(wrong(broken, kind)), 1, broken)


if __name__ == "__main__":
    unittest.main()
