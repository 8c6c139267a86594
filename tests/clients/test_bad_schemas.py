"""Constraints and tools that were made to hurt.

Each gets an answer, or a refusal that says why, in time. A stream beside them goes on, and the
server answers afterwards."""
import http.client
import threading
import time
import unittest

from server import ClientTest

from harness.http import objects, send

REPLY_LIMIT_S = 5
GAP_LIMIT_S = 2
MAX_TOKENS = 16
STREAM_TOKENS = 900
KEYS = 200  # of one object


def nested(levels, schema=None):
    schema = schema or {"type": "null"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def nested_arrays(levels):
    schema = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(keyword, levels):
    """References that stand for 2^levels schemas."""
    defs = {"s0": {"type": "string"}}
    for level in range(1, levels + 1):
        below = {"$ref": f"#/$defs/s{level - 1}"}
        defs[f"s{level}"] = {keyword: [below, below]}
    return {"$defs": defs, "$ref": f"#/$defs/s{levels}"}


def cycle():
    return {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}


def references(count, wrap=lambda schema: schema):
    """A chain of so many references."""
    def place(i):
        return f"#/$defs/g{i // KEYS}/$defs/s{i % KEYS}"
    defs = {f"g{i}": {"$defs": {}} for i in range((count - 1) // KEYS + 1)}
    for i in range(count):
        last = i == count - 1
        defs[f"g{i // KEYS}"]["$defs"][f"s{i % KEYS}"] = (
            {"type": "null"} if last else wrap({"$ref": place(i + 1)}))
    return {"$defs": defs, "$ref": place(0)}


def patterns(count):
    return {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(count)]}


def rules(count):
    """A chain of so many rules."""
    return ("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(count)) +
            f"r{count}: \"a\"")


SCHEMAS = {
    "10 patterns at once": patterns(10),
    "1000 references": references(1000),
    "as deep as a body may be": nested(29),
    "60 objects in each other": nested(60),
    "arrays in arrays": nested_arrays(55),
    "an enum of 10 MB": {"enum": [f"{i:0100d}" for i in range(100_000)]},
    "an enum of 400 kB": {"enum": [f"{i:0100d}" for i in range(4000)]},
    "a text of 400 kB": {"const": "a" * 400_000},
    "itself": {"$ref": "#"},
    "itself beside others": {"type": "object", "$ref": "#"},
    "a cycle": cycle(),
    "a list of itself": {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    "anyOf, doubled 30 times": doubling("anyOf", 30),
    "allOf, doubled 30 times": doubling("allOf", 30),
    "a pattern that backtracks": {"type": "string", "pattern": "^(a+)+$"},
    "a pattern of many states": {"type": "string", "pattern": "(.*a.{20}b){20}"},
    "a pattern that is none": {"type": "string", "pattern": "("},
    "a thousand million items": {"type": "array", "minItems": 10**9, "items": {}},
    "a text of a thousand million": {"type": "string", "minLength": 10**9},
    "a text of up to that": {"type": "string", "maxLength": 10**9},
    "a count beyond 64 bits": {"type": "string", "maxLength": 10**30},
    "a range of 300 digits": {"type": "integer", "minimum": 0, "maximum": 10**300},
    "multiples of nearly nothing": {"type": "number", "multipleOf": 1e-300},
    "multiples of zero": {"type": "number", "multipleOf": 0},
    "an empty range": {"type": "integer", "minimum": 2, "maximum": 1},
    "an empty enum": {"enum": []},
    "no type at all": {"type": []},
    "an unknown type": {"type": "town"},
    "300 keys": {"type": "object", "properties": {f"k{i}": {} for i in range(300)}},
    "200 keys": {"type": "object", "properties": {f"k{i}": {"type": "null"} for i in range(200)}},
    "a file": {"$ref": "file:///etc/passwd"},
    "another server": {"$ref": "http://127.0.0.1:1/schema.json"},
    "a place that is not there": {"$ref": "#/$defs/missing"},
    "properties that are none": {"type": "object", "properties": ["a"]},
    "a number": 7,
    "a list": [],
    "null": None,
    "text that is no JSON": "{",
    "keys of every kind": {"type": "object", "required": ["\"", "\n", "\u0000", "\U0001f600"],
                           "properties": {key: {} for key in ("\"", "\n", "\u0000", "\U0001f600")}},
}
REGEXES = {
    "backtracking": "(a+)+$",
    "counts of counts": "((((a{1,999}){1,999}){1,999}){1,999}){1,999}",
    "many states": "(.*a.{20}b){20}",
    "alternatives": "(a|a|b|ab)*c" * 50,
    "2 kB": "a?" * 1000,
    "5000 levels": "(" * 5000 + "a" + ")" * 5000,
    "look-ahead": "(?=a)a",
    "back reference": "(a)\\1",
    "unclosed": "[a-",
    "nothing": "",
    "a count that is too high": "a{1000000000}",
    "letters of Unicode": "\\p{L}{1,500}",
}
GRAMMARS = {
    "no start": "a: \"b\"",
    "only itself": "start: start",
    "left recursion": "start: start \"a\" | \"a\"",
    "ambiguous": "start: start start | \"a\" | \"\"",
    "500 rules": rules(500),
    "a bomb": "start: /((a{1,999}){1,999}){1,999}/",
    "text": "In the beginning",
    "a file": "%import common.NUMBER\nstart: NUMBER",
}
CHOICES = {
    "none": [],
    "an empty one": [""],
    "100 000": [f"choice {i}" for i in range(100_000)],
    "one of 300 kB": ["a" * 300_000],
    "a number": [1],
}


def tool(name, parameters=None):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {
        "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": False}}}


TOOLS = {
    "200 tools": [tool(f"tool{i}") for i in range(200)],
    "128 tools": [tool(f"tool{i}") for i in range(128)],
    "one name twice": [tool("a"), tool("a")],
    "a quote": [tool("say \"hello\"")],
    "a new line": [tool("one\ntwo")],
    "a name of 10 kB": [tool("a" * 10_000)],
    "no name": [tool("")],
    "other letters": [tool("Größe\u0000\U0001f600")],
    "markup": [tool("</tool_call><|end|>")],
    "parameters with an unknown keyword": [tool("a", {"type": "object", "not": {}})],
    "parameters that are themselves": [tool("a", {"$ref": "#"})],
    "parameters of 10 patterns": [tool("a", {"type": "object", "properties": {
        "a": patterns(10)}})],
    "parameters that are a text": [tool("a", "{}")],
}


def chat(**fields):
    return "v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}],
                                   "max_tokens": MAX_TOKENS, **fields}


def constrained(schema):
    return chat(response_format={"type": "json_schema",
                                 "json_schema": {"name": "bad", "schema": schema}})


# They took the stack, all memory, or a limit of the matcher.
EXTREME = {
    "5000 rules": chat(structured_outputs={"grammar": rules(5000)}),
    "5000 references": constrained(references(5000)),
    "1000 items in items": constrained(references(1000, lambda schema: {
        "type": "array", "prefixItems": [schema], "minItems": 1})),
    "40 patterns at once": constrained(patterns(40)),
    "a regex of 60 kB": chat(structured_outputs={"regex": "a?" * 30_000}),
    "3000 choices": chat(structured_outputs={"choice": [f"choice {i}" for i in range(3000)]}),
    "anyOf with 3000 objects": constrained({"anyOf": [
        {"type": "object", "properties": {f"k{i}": {"const": i}}, "required": [f"k{i}"]}
        for i in range(3000)]}),
    "a pattern of 2 kB": constrained({"type": "string", "pattern": "^" + "a?" * 1000 + "$"}),
}


def requests():
    for name, request in EXTREME.items():
        yield f"extreme: {name}", *request
    for name, schema in SCHEMAS.items():
        yield f"schema: {name}", *constrained(schema)
    for field, cases in (("regex", REGEXES), ("grammar", GRAMMARS), ("choice", CHOICES)):
        for name, value in cases.items():
            yield f"{field}: {name}", *chat(structured_outputs={field: value})
    for name, tools in TOOLS.items():
        yield f"tools: {name}", *chat(tools=tools, tool_choice="required")
        yield f"tools: {name}, auto", *chat(tools=tools)


class Bystander(threading.Thread):
    """Streams all the time, and notes the longest time without a token."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server = server
        self.leaving = threading.Event()
        self.last = None
        self.gaps = []
        self.failure = None

    def run(self):
        try:
            while not self.leaving.is_set():
                self.stream()
        except Exception as error:
            self.failure = repr(error)

    def stream(self):
        with self.server.connect() as connection:
            for _ in objects(send(connection, "POST", "/v1/completions", {
                    "prompt": "In the beginning", "max_tokens": STREAM_TOKENS, "ignore_eos": True,
                    "stream": True})):
                self.note()
                if self.leaving.is_set():
                    break

    def note(self):
        now = time.monotonic()
        if self.last is not None:
            self.gaps.append(now - self.last)
        self.last = now

    def stop(self):
        self.leaving.set()
        self.join(30)


class BadSchemas(ClientTest):
    def send(self, name, path, body):
        """Name, status, message and time."""
        start = time.monotonic()
        try:
            status, reply = self.post(path, body, limit_s=2 * REPLY_LIMIT_S)
        except (OSError, http.client.HTTPException) as error:
            return name, 0, repr(error), time.monotonic() - start
        message = reply["error"]["message"] if "error" in reply else ""
        return name, status, message, time.monotonic() - start

    def works(self):
        return self.send("", *chat(response_format={"type": "json_object"}))[1] == 200

    @staticmethod
    def is_proper(status, message, took_s):
        return (status == 200 or (status in (400, 413) and message)) and took_s < REPLY_LIMIT_S

    def test_each(self):
        bystander = Bystander(self.server)
        bystander.start()
        results = [self.send(*request) for request in requests()]
        bystander.stop()
        print(f"\n  {len(results)} requests: " + ", ".join(
            f"{sum(1 for result in results if result[1] == status)} with {status}"
            for status in sorted({result[1] for result in results})) +
            f"; the slowest took {max(result[3] for result in results):.2f} s; the stream beside "
            f"them had {len(bystander.gaps)} tokens, {max(bystander.gaps):.2f} s apart at most")
        for name, status, message, took_s in results:
            with self.subTest(name):
                self.assertTrue(self.is_proper(status, message, took_s),
                                f"{status} after {took_s:.2f} s: {message[:200]}")
        self.assertIsNone(bystander.failure)
        self.assertGreater(len(bystander.gaps), 100)
        self.assertLess(max(bystander.gaps), GAP_LIMIT_S)
        self.assertTrue(self.works())


if __name__ == "__main__":
    unittest.main()
