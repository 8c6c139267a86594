"""Anthropic's client for Python, over the Messages API."""
import unittest

import anthropic

from server import ClientTest

# The client has no argument for the temperature.
PARAMS = {"model": "demo", "max_tokens": 24, "extra_body": {"temperature": 0},
          "messages": [{"role": "user", "content": "Tell me about the sea."}]}
TOOLS = [{"name": "weather", "description": "The weather of a town.", "input_schema": {
    "type": "object", "additionalProperties": False, "required": ["town"],
    "properties": {"town": {"enum": ["Oslo", "Rome"]}}}}]


class AnthropicTest(ClientTest):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def test_message(self):
        answer = self.client.messages.create(**PARAMS, system="Be brief.")
        self.assertEqual(answer.stop_reason, "max_tokens")
        self.assertTrue(answer.content[0].text)
        self.assertEqual(answer.usage.output_tokens, 24)

    def test_stream(self):
        whole = self.client.messages.create(**PARAMS).content[0].text
        with self.client.messages.stream(**PARAMS) as stream:
            pieces = list(stream.text_stream)
            self.assertEqual("".join(pieces), whole)
            self.assertEqual(stream.get_final_message().stop_reason, "max_tokens")
        self.assertGreater(len(pieces), 1)

    def ask_weather(self, **more):
        return {**PARAMS, "max_tokens": 200, "tools": TOOLS, "tool_choice": {"type": "any",
                "disable_parallel_tool_use": True}, **more}

    def test_tool_and_its_result(self):
        request = self.ask_weather()
        request["tool_choice"] = {"type": "tool", "name": "weather"}
        answer = self.client.messages.create(**request)
        self.assertEqual(answer.stop_reason, "tool_use")
        call = answer.content[-1]
        self.assertIn(call.input["town"], ("Oslo", "Rome"))
        messages = PARAMS["messages"] + [
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": "sun"}]}]
        after = self.client.messages.create(**{**PARAMS, "messages": messages, "tools": TOOLS})
        self.assertTrue(after.content)

    def test_tool_in_a_stream(self):
        with self.client.messages.stream(**self.ask_weather()) as stream:
            message = stream.get_final_message()
        self.assertIn(message.content[-1].input["town"], ("Oslo", "Rome"))

    def test_count_tokens(self):
        count = self.client.messages.count_tokens(model="demo", messages=PARAMS["messages"])
        answer = self.client.messages.create(**PARAMS)
        used = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
        self.assertEqual(count.input_tokens, used)

    def test_an_answer_that_was_begun_is_continued(self):
        begun = [*PARAMS["messages"], {"role": "assistant", "content": "Once upon a"}]
        answer = self.client.messages.create(**{**PARAMS, "messages": begun})
        self.assertEqual(answer.role, "assistant")
        counted = self.client.messages.count_tokens(model="demo", messages=begun)
        self.assertEqual(answer.usage.input_tokens + answer.usage.cache_read_input_tokens,
                         counted.input_tokens)
        with self.assertRaisesRegex(anthropic.BadRequestError, "must not end with white space"):
            self.client.messages.create(**{**PARAMS, "messages": [
                *PARAMS["messages"], {"role": "assistant", "content": "Once "}]})

    def test_a_stream_begins_with_the_number_of_tokens(self):
        counted = self.client.messages.count_tokens(model="demo", messages=PARAMS["messages"])
        with self.client.messages.stream(**PARAMS) as stream:
            first = next(event for event in stream if event.type == "message_start")
            usage = first.message.usage
            self.assertEqual(usage.input_tokens + usage.cache_read_input_tokens, counted.input_tokens)

    def test_fields_of_agents(self):
        raw = self.client.messages.with_raw_response.create(
            **{**PARAMS, "max_tokens": 32000}, thinking={"type": "adaptive"}, timeout=60,
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            tools=[{"type": "web_search_20250305", "name": "web_search"}], stop_sequences=["e"])
        self.assertEqual(raw.headers["x-millrace-ignored"], "thinking, tools[0].web_search_20250305")
        answer = self.client.messages.create(**{**PARAMS, "extra_body": {
            "output_config": {"format": {"type": "json_schema", "schema": {"enum": ["port"]}}}}})
        self.assertEqual(answer.content[0].text, '"port"')

    def test_failures(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(**{**PARAMS, "model": "other"})
        image = [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/"}}]
        with self.assertRaisesRegex(anthropic.BadRequestError, "type must be text"):
            self.client.messages.create(**{**PARAMS, "messages": [
                {"role": "user", "content": image}]})


if __name__ == "__main__":
    unittest.main()
