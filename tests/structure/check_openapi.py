#!/usr/bin/env python3
"""Fails when src/serve/http/openapi.json and the server differ: a route or a field of a request that is
in one of them only, or a field that the document calls refused or ignored and the parser does not,
or the reverse. Each run first proves that the check can fail.
"""
import copy
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVE = ROOT / "src/serve"
READ = re.compile(r'\breader_?\.(?:Bool|Int|Bits|Number|String|StringOrList|Object|Array|Find|Ignore|'
                  r'Unsupported)\(\s*"(\w+)"')
PASSED = re.compile(r'\b(?:ReadTokens|ReadPrompts|AddTexts)\(reader, "(\w+)"')
TAKEN = re.compile(r'\b(?:Take|Copy)\(\s*"(\w+)"')
LOOP = re.compile(r'for \(const char\* field :\s*\{([^}]*)\}\)(.{0,40})', re.S)
REFUSED = re.compile(r'\breader_?\.Unsupported\(\s*"(\w+)"')
IGNORED = re.compile(r'\breader_?\.Ignore\(\s*"(\w+)"')
ROUTE = re.compile(r'\badd\(\s*"(GET|POST|DELETE)",\s*"(/[^"]*)"')
ADMIN = ("/cluster/", "/debug/")
# Below a route that takes any rest of the path.
BELOW = {
    ("GET", "/v1/responses/"): ["{id}", "{id}/input_items"],
    ("DELETE", "/v1/responses/"): ["{id}"],
    ("POST", "/v1/responses/"): ["{id}/cancel"],
    ("GET", "/v1/files/"): ["{id}", "{id}/content"],
    ("DELETE", "/v1/files/"): ["{id}"],
    ("GET", "/v1/batches/"): ["{id}"],
    ("POST", "/v1/batches/"): ["{id}/cancel"],
    ("GET", "/v1/streams/"): ["{id}"],
    ("GET", "/api/blobs/"): ["{digest}"],
    ("POST", "/api/blobs/"): ["{digest}"],
    ("GET", "/v1/models/"): ["{id}"],
}


def function_of(text, name):
    """The text of one function, up to the brace that ends it."""
    begin = re.search(rf"^void {name}\(.*?\{{$", text, re.M | re.S)
    return text[begin.start():text.index("\n}", begin.end())]


class Parser:
    """The fields that some source text looks up."""

    def __init__(self, *texts):
        text = "\n".join(texts)
        self.fields = set(READ.findall(text)) | set(PASSED.findall(text)) | set(TAKEN.findall(text))
        self.refused, self.ignored = set(REFUSED.findall(text)), set(IGNORED.findall(text))
        for names, use in LOOP.findall(text):
            found = set(re.findall(r'"(\w+)"', names))
            self.fields |= found
            self.refused |= found if "Unsupported(field" in use else set()


def parsers():
    read = lambda name: next(SERVE.rglob(name)).read_text()
    common, ignored, conversation = (
        read("parse_common.cc"), read("ignored_fields.cc"), read("parse_conversation.cc"))
    template = function_of(common, "ReadTemplate")
    refused_everywhere = function_of(common, "RefuseUnsupported")
    generation = common.replace(template, "") + read("parse_sampling.cc")
    ignored_everywhere = function_of(ignored, "IgnoreKnownFields")
    constraint = read("parse_constraint.cc")
    vectors = read("parse_vectors.cc")
    starts = [vectors.index(f"Parsed<{name}> Parse{name}(")
              for name in ("EmbeddingRequest", "ScoreRequest", "RerankRequest")]
    embedding, score, rerank = (vectors[a:b] for a, b in zip(starts, [*starts[1:], None]))
    of_all = "".join(function_of(text, name) for text, name in (
        (vectors, "ReadPooling"), (vectors, "ReadVectorOptions"), (common, "ReadTruncation")))
    documents = function_of(vectors, "AddDocuments")
    tokenize = read("parse_tokenize.cc")
    half = tokenize.index("ParseDetokenizeRequest")
    return {
        "CompletionRequest": Parser(generation, constraint, ignored_everywhere,
                                    read("parse_completion.cc"), refused_everywhere),
        "ChatRequest": Parser(common, read("parse_sampling.cc"), constraint, ignored, conversation,
                              read("parse_chat.cc")),
        "TokenizeRequest": Parser(conversation, template, tokenize[:half]),
        "DetokenizeRequest": Parser(tokenize[half:]),
        "ResponsesRequest": Parser(read("responses_request.cc")),
        "EmbeddingRequest": Parser(of_all, embedding),
        "ScoreRequest": Parser(of_all, score),
        "RerankRequest": Parser(of_all, rerank, documents),
        "MessagesRequest": Parser(read("messages_api.cc")),
    }


def routes():
    found = set()
    for path in SERVE.rglob("*.cc"):
        for method, route in ROUTE.findall(path.read_text()):
            if route.startswith(ADMIN):
                continue
            for rest in BELOW.get((method, route), [""]):
                found.add((method, route + rest))
    text = (SERVE / "vector_routes.cc").read_text()
    text = text[text.index("::AddTo("):]
    found |= {("POST", route) for route in re.findall(r'"(/\w[^"]*)"', text[:text.index("\n}")])}
    return found


def differences(document):
    written = {(method.upper(), path) for path, item in document["paths"].items()
               for method in item if method != "parameters"}
    served = routes()
    for route in sorted(written ^ served):
        where = "openapi.json" if route in written else "the server"
        yield f"{' '.join(route)}: only in {where}"
    for name, parser in parsers().items():
        fields = document["components"]["schemas"][name]["properties"]
        for field in sorted(set(fields) ^ parser.fields):
            where = "openapi.json" if field in fields else "the parser"
            yield f"{name}.{field}: only in {where}"
        for effect, known in (("refused", parser.refused), ("ignored", parser.ignored)):
            marked = {f for f, schema in fields.items() if schema.get("x-effect") == effect}
            for field in sorted((marked ^ known) & set(fields)):
                yield f"{name}.{field}: {effect} in one of the two only"


def main():
    document = json.loads((SERVE / "http/openapi.json").read_text())
    broken = copy.deepcopy(document)
    del broken["components"]["schemas"]["ChatRequest"]["properties"]["seed"]
    del broken["paths"]["/v1/models"]
    broken["components"]["schemas"]["CompletionRequest"]["properties"]["n"]["x-effect"] = "refused"
    missed = {"ChatRequest.seed", "GET /v1/models", "CompletionRequest.n"} - {
        line.split(":")[0] for line in differences(broken)}
    assert not missed, f"the check cannot see {missed}"
    found = list(differences(document))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
