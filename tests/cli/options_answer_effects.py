"""How the effects of options on answers are seen, for options_table.py: their form, streams, and what
of them is stored. options_effects.py has the others."""
import json
import pathlib

from harness.waiting import wait_for
from options_effects import check, same


def chat_template(server, value):
    check("[[" in value.read_text(), "the template of this test marks messages")
    asked = {"messages": [{"role": "user", "content": "sea"}]}
    tokens = server.json("/tokenize", asked)["tokens"]
    same(server.json("/detokenize", {"tokens": tokens})["prompt"], "[[sea]]")


def content_format(server, _):
    """The template of this test would show parts without anything between them."""
    parts = [{"type": "text", "text": text} for text in ("sea", "wind")]
    tokens = server.json("/tokenize", {"messages": [{"role": "user", "content": parts}]})["tokens"]
    same(server.json("/detokenize", {"tokens": tokens})["prompt"], "[[sea\nwind]]")


def tool_calls(server, _):
    """The template of this test shows no way to write calls."""
    _, headers, _ = server.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "sea"}], "max_tokens": 2,
        "tools": [{"type": "function", "function": {"name": "f"}}]})
    check("tools" not in (headers["X-Millrace-Ignored"] or ""), f"{headers}")


def reasoning(server, _):
    """Only a model that reasons takes a budget for it."""
    status, _, text = server.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "sea"}], "max_tokens": 2,
        "thinking_token_budget": 1})
    check(status == 200, f"{status} {text}")


def resumable(server, _):
    status, headers, text = server.request("POST", "/v1/completions",
                                           {"prompt": "Once", "max_tokens": 4, "stream": True})
    same(status, 200)
    check(headers["X-Stream-Id"] and "\nid: " in "\n" + text, f"{headers} {text}")


def pings(server, _):
    """A prompt of several steps takes more than a millisecond."""
    _, _, text = server.request("POST", "/v1/completions",
                                {"prompt": [7] * 400, "max_tokens": 4, "stream": True})
    check("\n: ping\n" in "\n" + text, text[:200])


def request_log(server, value):
    answer = server.complete(temperature=1)

    def written():  # by a thread, which the answer does not wait for
        whole = pathlib.Path(value).read_text().rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.splitlines()]
        return next((line for line in lines if line["id"] == answer["id"]), None)

    line = wait_for(written, "the request is in the log")
    same(line["answers"][0]["finish_reason"], "length")
    same(server.json(line["route"], line["request"])["choices"][0]["token_ids"],
         line["answers"][0]["token_ids"])


def own_template(server, _):
    asked = {"messages": [{"role": "user", "content": "sea"}],
             "chat_template": "<<{{ messages[0].content }}>>"}
    same(server.json("/apply-template", asked)["prompt"], "<<sea>>")


def clamps_length(server, _):
    asked = {"prompt": "Once upon a time", "max_tokens": 1_000_000, "stop": ["e"]}
    same(len(server.json("/v1/completions", asked)["choices"]), 1)


def object_store(server, value):
    made = server.json("/v1/responses", {"input": "Once", "max_output_tokens": 4})
    same(server.json("/v1/responses/" + made["id"])["id"], made["id"])
    check((pathlib.Path(value) / "objects.sqlite").stat().st_size > 4000, "nothing is stored")


def object_store_limit(server, _):  # files may take half of it
    part = "--b\r\nContent-Disposition: form-data; name="
    form = f"{part}purpose\r\n\r\nbatch\r\n{part}file\r\n\r\n{'x' * 1_200_000}\r\n--b--"
    same(server.request("POST", "/v1/files", form, server.headers() | {
        "Content-Type": "multipart/form-data; boundary=b"}).status, 429)
