"""The official OpenAI client for Python."""
import asyncio
import json
import typing
import unittest

import openai
import pydantic

from server import ClientTest

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
PARAMS = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 16}


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    people: int = pydantic.Field(ge=0, le=99999)
    kind: typing.Literal["port", "market"]


class Forbids(pydantic.BaseModel):
    """Its schema has `not`, which no grammar can hold."""
    model_config = pydantic.ConfigDict(json_schema_extra={"not": {"required": ["error"]}})
    name: str


class Weather(pydantic.BaseModel):
    """The weather of a town."""
    town: typing.Literal["Oslo", "Rome"]
    days: int = pydantic.Field(ge=1, le=9)


def weather(town, days):
    return f"{days} days of sun in {town}"


TOOL = openai.pydantic_function_tool(Weather, name="weather")


class OpenAiTest(ClientTest):
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")

    def test_chat(self):
        answer = self.client.chat.completions.create(**PARAMS)
        self.assertTrue(answer.choices[0].message.content)
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_completion(self):
        answer = self.client.completions.create(model="demo", prompt="In the beginning",
                                                max_tokens=8, logprobs=2)
        self.assertTrue(answer.choices[0].text)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 8)

    def test_stream(self):
        whole = self.client.chat.completions.create(**PARAMS).choices[0].message.content
        text, usage = "", None
        for chunk in self.client.chat.completions.create(
                **PARAMS, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
        self.assertEqual(text, whole)
        self.assertEqual(usage.completion_tokens, 16)

    def test_stream_helper(self):
        # The helper takes an answer that was cut off for a failure.
        with self.client.chat.completions.stream(
                **{**PARAMS, "max_tokens": 64}, stop=["e"]) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertIn("content.delta", kinds)
        self.assertTrue(final.choices[0].message.content)

    def test_async(self):
        async def ask():
            async with openai.AsyncOpenAI(base_url=self.base_url, api_key="none") as client:
                answers = await asyncio.gather(*(client.chat.completions.create(**PARAMS)
                                                 for _ in range(8)))
                stream = await client.chat.completions.create(**PARAMS, stream=True)
                chunks = [chunk async for chunk in stream]
                return {answer.choices[0].message.content for answer in answers}, chunks
        texts, chunks = asyncio.run(ask())
        self.assertEqual(len(texts), 1)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "length")

    def test_parse(self):
        answer = self.client.chat.completions.parse(
            **{**PARAMS, "max_tokens": 96}, response_format=Town)
        town = answer.choices[0].message.parsed
        self.assertIsInstance(town, Town)
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_parse_stream(self):
        with self.client.chat.completions.stream(
                **{**PARAMS, "max_tokens": 96}, response_format=Town) as stream:
            partial = [event.parsed for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
        self.assertIsInstance(final.choices[0].message.parsed, Town)
        self.assertTrue(any(partial))

    def test_parse_cut_off(self):
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(**{**PARAMS, "max_tokens": 3}, response_format=Town)

    def test_json_object(self):
        answer = self.client.chat.completions.create(
            **{**PARAMS, "max_tokens": 64}, response_format={"type": "json_object"},
            logit_bias=self.likelier(["}", '"'], by=10))
        self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)

    def test_required_tool(self):
        answer = self.client.chat.completions.parse(
            **{**PARAMS, "max_tokens": 96}, tools=[TOOL], tool_choice="required",
            parallel_tool_calls=False)
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        call, = answer.choices[0].message.tool_calls
        arguments = call.function.parsed_arguments
        self.assertIsInstance(arguments, Weather)
        result = weather(**arguments.model_dump())
        self.assertIn("days of sun in", result)
        # The result goes back, and the model answers.
        after = self.client.chat.completions.create(**{**PARAMS, "messages": [
            *MESSAGES, answer.choices[0].message.model_dump(exclude={"parsed"}),
            {"role": "tool", "tool_call_id": call.id, "content": result}]}, tools=[TOOL])
        self.assertTrue(after.choices[0].message.content)

    def test_named_tool_in_a_stream(self):
        tools = [TOOL, openai.pydantic_function_tool(Town, name="found")]
        name, arguments = "", ""
        for chunk in self.client.chat.completions.create(
                **{**PARAMS, "max_tokens": 96}, tools=tools, stream=True,
                tool_choice={"type": "function", "function": {"name": "found"}}):
            for call in chunk.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            finish = chunk.choices[0].finish_reason
        self.assertEqual((name, finish), ("found", "tool_calls"))
        Town.model_validate_json(arguments)

    def test_tool_events_of_the_stream_helper(self):
        with self.client.chat.completions.stream(
                **{**PARAMS, "max_tokens": 96}, tools=[TOOL], tool_choice="required",
                parallel_tool_calls=False) as stream:
            done = [event for event in stream
                    if event.type == "tool_calls.function.arguments.done"]
        self.assertIsInstance(done[0].parsed_arguments, Weather)

    def test_unsupported_schema(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.parse(**PARAMS, response_format=Forbids)
        self.assertEqual(caught.exception.param, "response_format.json_schema.schema")
        self.assertIn("response_format.json_schema.schema", caught.exception.message)
        self.assertIn('"not"', caught.exception.message)

    def test_failures(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(**{**PARAMS, "model": "other"})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(**{**PARAMS, "temperature": -1})
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(**{**PARAMS, "max_tokens": 4096})
        self.assertEqual(caught.exception.code, "context_length_exceeded")


if __name__ == "__main__":
    unittest.main()
