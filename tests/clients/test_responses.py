"""The official OpenAI client for Python, over the Responses API."""
import json
import time
import typing
import unittest

import openai
import pydantic

from server import ClientTest

PARAMS = {"model": "demo", "input": "Tell me about the sea.", "max_output_tokens": 24}
TOOL = {"type": "function", "name": "weather", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False, "required": ["town"],
    "properties": {"town": {"enum": ["Oslo", "Rome"]}}}}


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    kind: typing.Literal["port", "market"]


class ResponsesTest(ClientTest):
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def test_response(self):
        answer = self.client.responses.create(**PARAMS, instructions="Be brief.", temperature=0)
        self.assertEqual(answer.status, "incomplete")
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")
        self.assertTrue(answer.output_text)
        self.assertEqual(answer.usage.output_tokens, 24)

    def test_stream(self):
        whole = self.client.responses.create(**PARAMS, temperature=0).output_text
        with self.client.responses.stream(**PARAMS, temperature=0) as stream:
            events = list(stream)
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        self.assertEqual("".join(deltas), whole)
        self.assertEqual(events[-1].type, "response.incomplete")
        self.assertEqual(events[-1].response.output_text, whole)

    def test_parse(self):
        answer = self.client.responses.parse(**{**PARAMS, "max_output_tokens": 200},
                                             text_format=Town)
        self.assertIn(answer.output_parsed.kind, ("port", "market"))

    def test_tool_and_its_result(self):
        asked = [{"role": "user", "content": "The weather?"}]
        answer = self.client.responses.create(model="demo", input=asked, tools=[TOOL],
                                              tool_choice="required", parallel_tool_calls=False,
                                              max_output_tokens=200)
        call = answer.output[-1]
        self.assertIn(json.loads(call.arguments)["town"], ("Oslo", "Rome"))
        after = self.client.responses.create(
            model="demo", max_output_tokens=16, tools=[TOOL], tool_choice="none",
            input=asked + answer.output + [
                {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}])
        self.assertTrue(after.output_text)

    def test_conversation_that_is_stored(self):
        first = self.client.responses.create(**PARAMS, temperature=0)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, first.output_text)
        items = self.client.responses.input_items.list(first.id).data
        self.assertEqual(items[0].content[0].text, PARAMS["input"])
        second = self.client.responses.create(**{**PARAMS, "input": "And the wind?"},
                                              previous_response_id=first.id)
        self.assertEqual(second.previous_response_id, first.id)
        self.assertGreater(second.usage.input_tokens, first.usage.total_tokens)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)

    def test_background(self):
        whole = self.client.responses.create(**PARAMS, temperature=0).output_text
        made = self.client.responses.create(**PARAMS, temperature=0, background=True)
        while made.status in ("queued", "in_progress"):
            time.sleep(0.05)
            made = self.client.responses.retrieve(made.id)
        self.assertEqual(made.output_text, whole)
        self.assertEqual(self.client.responses.cancel(made.id).status, made.status)

    def test_stream_in_the_background_that_is_taken_up_again(self):
        whole = self.client.responses.create(**PARAMS, temperature=0).output_text
        seen = []
        with self.client.responses.create(**PARAMS, temperature=0, background=True,
                                          stream=True) as stream:
            for event in stream:
                seen.append(event)
                if len(seen) == 8:
                    break
        with self.client.responses.retrieve(
                seen[0].response.id, stream=True,
                starting_after=seen[-1].sequence_number) as stream:
            seen += list(stream)
        deltas = [event.delta for event in seen if event.type == "response.output_text.delta"]
        self.assertEqual("".join(deltas), whole)

    def test_failures(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(**{**PARAMS, "model": "other"})
        with self.assertRaisesRegex(openai.BadRequestError, "previous_response_id"):
            self.client.responses.create(**PARAMS, previous_response_id="resp_1")


if __name__ == "__main__":
    unittest.main()
