"""Chat templates as Jinja2 renders them, set up as transformers sets it up: every template of the tests' data, and of
the folder MILLRACE_TEMPLATES if there is one, over made-up conversations."""
import datetime
import json
import os
import pathlib
import unittest

from conversations import conversations
from jinja_reference import environment
from server import ClientTest, Server

ROOT = pathlib.Path(__file__).parent.parent.parent
SEED, COUNT = 20260102, 100


def folders():
    yield ROOT / "src/text/testdata/chat_templates/templates"
    shared = pathlib.Path(os.environ.get("MILLRACE_TEMPLATES", ROOT / "../shared/data/chat_templates/templates"))
    if shared.is_dir():
        yield shared


def templates():
    return {path.name: path.read_text() for folder in folders() for path in sorted(folder.glob("*.jinja"))}


def with_calls(messages, change):
    return [message | {"tool_calls": [change(call) for call in message["tool_calls"]]}
            if message.get("tool_calls") else message for message in messages]


def as_text(call):
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False, separators=(",", ":"))
    return call | {"function": function | {"arguments": text}}


def one_call_per_message(messages):
    made, left = [], list(messages)
    while left:
        message = left.pop(0)
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            made.append(message)
            continue
        results = []
        while left and left[0]["role"] == "tool":
            results.append(left.pop(0))
        for number, call in enumerate(calls):
            content = message["content"] if number == 0 else ""
            made.append(message | {"content": content, "tool_calls": [call]})
            mine = [result for result in results if result["tool_call_id"] == call["id"]][:1]
            made += mine
            results = [result for result in results if result not in mine]
        made += results
    return made


def forms(messages):
    """What the server tries in turn (src/serve/request/message_forms.h)."""
    yield messages
    if any(message.get("tool_calls") for message in messages):
        yield with_calls(messages, as_text)
        yield one_call_per_message(messages)


class JinjaTest(ClientTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--trust-request-chat-template")
        info = cls.server.json("/tokenizer_info")
        cls.tokens = {name: info[name] for name in ("bos_token", "eos_token", "unk_token", "pad_token") if info[name]}

    def expected(self, template, messages, tools, kwargs):
        """The texts that Jinja2 makes; None: it fails. Content that is null may reach a template as an empty string, and
        one that fails at calls gets them in other forms."""
        for form in forms(messages):
            texts = set()
            for empty in (None, ""):
                given = [message | {"content": message["content"] or empty} if message.get("tool_calls") else message
                         for message in form]
                # A template that loops over tools without a question gets an empty list.
                for known in (tools,) if tools else (None, []):
                    try:
                        texts.add(template.render(messages=given, tools=known, documents=None, **self.tokens, **kwargs))
                        break
                    except Exception:  # whatever a template raises
                        texts.add(None)
            if texts != {None}:
                break
        return texts

    def rendered(self, source, messages, tools, kwargs):
        kwargs = dict(kwargs)
        body = {"messages": messages, "chat_template": source,
                "add_generation_prompt": kwargs.pop("add_generation_prompt"), "chat_template_kwargs": kwargs}
        if tools:
            body["tools"] = tools
        status, reply = self.post("apply-template", body)
        self.assertIn(status, (200, 400), reply)
        return reply["prompt"] if status == 200 else None

    def test_prompts_are_those_of_jinja2(self):
        texts = failures = 0
        made = conversations(SEED, COUNT)
        for name, source in templates().items():
            for number, (messages, tools) in enumerate(made):
                kwargs = {"add_generation_prompt": number % 2 == 0}
                if number % 3 == 0:
                    kwargs["enable_thinking"] = number % 4 == 0
                with self.subTest(template=name, conversation=number):
                    template = environment(datetime.datetime.now()).from_string(source)
                    text = self.rendered(source, messages, tools, kwargs)
                    self.assertIn(text, self.expected(template, messages, tools, kwargs))
                    texts += text is not None
                    failures += text is None
        self.assertGreater(texts, 6 * COUNT)  # not all templates take all conversations
        self.assertGreater(failures, 0)


if __name__ == "__main__":
    unittest.main()
