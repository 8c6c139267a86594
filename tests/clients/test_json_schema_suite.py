"""The required tests of the JSON-Schema-Test-Suite (draft 2020-12) as constraints.

Every schema of the suite constrains answers of the server, and an independent validator judges
them. A schema may be refused. An answer that ended by itself must be valid. The suite's instances
are asked for, too, with a `const` beside the schema: an invalid one must be refused."""
import collections
import concurrent.futures
import fractions
import json
import os
import pathlib
import time

import referencing
from jsonschema import Draft202012Validator
from referencing.jsonschema import DRAFT202012

from server import ClientTest

SUITE = pathlib.Path(os.environ["JSON_SCHEMA_SUITE"])
REMOTES = "http://localhost:1234/"  # where the suite's schemas say that its other schemas are
THREADS = 4
MAX_TOKENS = 64
# The prompt, the temperature and the seed of each request; the spread finds more of a grammar.
REQUESTS = [("Tell me about JSON.", 1, 1), ("Give me a number.", 1, 2), ("[1, 2]", 2, 3)]
CHOICES = 4  # of each request
# A schema that leaves the type open is also sent with each of these.
TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]
# Ends of strings, arrays and objects come sooner, so that more answers fit into MAX_TOKENS.
ENDS, ENDS_BIAS = ['"', "]", "}", "<|end|>"], 5
INSTANCE_TOKENS = 256  # more than any instance has


def suite():
    """File name and content of every group of tests."""
    for path in sorted((SUITE / "tests" / "draft2020-12").glob("*.json")):
        for group in json.loads(path.read_text()):
            yield path.name, group


def groups():
    """File, description and schema of every group."""
    return [(name, group["description"], group["schema"]) for name, group in suite()]


def instances():
    """File, description, schema, instance and whether it is valid."""
    return [(name, f"{group['description']}: {test['description']}",
             {} if group["schema"] is True else group["schema"], test["data"], test["valid"])
            for name, group in suite() if group["schema"] is not False for test in group["tests"]]


def with_types(schema):
    if schema is True:
        schema = {}
    return [] if "type" in schema else [{**schema, "type": name} for name in TYPES]


def remote_schemas():
    folder = SUITE / "remotes"
    resources = []
    for path in [*folder.glob("*.json"), *(folder / "draft2020-12").rglob("*.json")]:
        resource = DRAFT202012.create_resource(json.loads(path.read_text()))
        resources.append((REMOTES + path.relative_to(folder).as_posix(), resource))
    return referencing.Registry().with_resources(resources)


def rounded(error, answer):
    """Whether a multiple is none only because the validator divides binary fractions."""
    if error.validator != "multipleOf":
        return False
    value = json.loads(answer, parse_float=fractions.Fraction)
    for key in error.absolute_path:
        value = value[key]
    return value % fractions.Fraction(str(error.validator_value)) == 0


class Verdict(collections.namedtuple("Verdict", "kind file description schema answers")):
    """`kind` is right, refused, no whole answer or wrong."""


class JsonSchemaSuite(ClientTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.remotes = remote_schemas()
        cls.bias = cls.likelier(ENDS, ENDS_BIAS)

    def ask(self, schema, prompt, temperature, seed):
        return self.post("v1/chat/completions", {
            "messages": [{"role": "user", "content": prompt}], "temperature": temperature,
            "seed": seed, "n": CHOICES, "max_tokens": MAX_TOKENS, "top_p": 1,
            "logit_bias": self.bias, "response_format": {
                "type": "json_schema", "json_schema": {"name": "suite", "schema": schema}}})

    def fault(self, schema, answer):
        """Why an answer is not valid, or None."""
        try:
            value = json.loads(answer)
        except ValueError as error:
            return str(error)
        validator = Draft202012Validator(schema, registry=self.remotes)
        errors = (error for error in validator.iter_errors(value) if not rounded(error, answer))
        return next((error.message for error in errors), None)

    def whole_answers(self, schema):
        """Those that ended by themselves; None if the schema is refused."""
        whole = []
        for request in REQUESTS:
            status, reply = self.ask(schema, *request)
            if status == 400:
                return None
            assert status == 200, f"{status} {reply} for {schema}"
            whole += [choice["message"]["content"] for choice in reply["choices"]
                      if choice["finish_reason"] == "stop"]
        return whole

    def judge(self, group):
        _, _, schema = group
        whole = self.whole_answers(schema)
        if whole is None:
            return Verdict("refused", *group, [])
        judged = [(schema, answer) for answer in whole]
        for typed in with_types(schema):
            judged += [(typed, answer) for answer in self.whole_answers(typed) or []]
        wrong = [f"{answer}\n      to {json.dumps(asked)}: {why}" for asked, answer in judged
                 if (why := self.fault(asked, answer))]
        if wrong:
            return Verdict("wrong", *group, wrong)
        return Verdict("right" if judged else "no whole answer", *group,
                       [answer for _, answer in judged])

    def judge_instance(self, instance):
        """What became of it, and its description."""
        _, _, schema, data, valid = instance
        request = {"prompt": "x", "max_tokens": INSTANCE_TOKENS}
        if self.post("v1/completions", {**request, "guided_json": schema})[0] == 400:
            return "of a refused schema", instance
        exact = {**schema, **({"enum": [data]} if "const" in schema else {"const": data})}
        status, reply = self.post("v1/completions", {**request, "guided_json": exact})
        if status == 400:
            return ("valid but refused" if valid else "invalid and refused"), instance
        answer = reply["choices"][0]["text"]
        if self.fault(exact, answer):
            return "wrong", (*instance, answer)
        return "valid and written", instance

    @staticmethod
    def in_parallel(function, items):
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(function, items))

    def test_instances(self):
        results = self.in_parallel(self.judge_instance, instances())
        counts = collections.Counter(kind for kind, _ in results)
        print("\n  instances: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
        for kind, instance in results:
            if kind in ("valid but refused", "wrong"):
                print(f"  {kind}: " + " | ".join(map(str, instance)))
        self.assertGreater(counts["valid and written"], 0)
        self.assertEqual(counts["wrong"], 0)

    def test_schemas(self):
        start = time.monotonic()
        verdicts = self.in_parallel(self.judge, groups())
        counts = collections.Counter(verdict.kind for verdict in verdicts)
        answers = sum(len(v.answers) for v in verdicts if v.kind == "right")
        print(f"\n  {len(verdicts)} schemas in {time.monotonic() - start:.0f} s: " +
              ", ".join(f"{counts[kind]} {kind}"
                        for kind in ("right", "refused", "no whole answer", "wrong")) +
              f"; {answers} whole answers to the right ones")
        for verdict in verdicts:
            if verdict.kind in ("no whole answer", "wrong"):
                print(f"  {verdict.kind}: {verdict.file}: {verdict.description}\n"
                      f"    {json.dumps(verdict.schema)}")
                for answer in verdict.answers:
                    print(f"    {answer}")
        self.assertGreater(counts["right"], 0)
        self.assertEqual(counts["wrong"], 0)
