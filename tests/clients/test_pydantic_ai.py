"""Pydantic AI's agents over its OpenAI chat model."""
import asyncio
import typing
import unittest

import pydantic
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from server import ClientTest

SETTINGS = {"temperature": 0, "max_tokens": 96, "parallel_tool_calls": False}


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    people: int = pydantic.Field(ge=0, le=99999)


class Forbids(pydantic.BaseModel):
    """Its schema has `not`, which no grammar can hold."""
    model_config = pydantic.ConfigDict(json_schema_extra={"not": {"required": ["error"]}})
    name: str


class PydanticAiTest(ClientTest):
    def agent(self, name="demo", **params):
        model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=self.base_url,
                                                              api_key="none"))
        settings = {**SETTINGS, **params.pop("settings", {})}
        return Agent(model, model_settings=settings, **params)

    def test_chat(self):
        result = self.agent(settings={"max_tokens": 16}).run_sync("Tell me about the sea.")
        self.assertTrue(result.output)
        self.assertEqual(result.usage.output_tokens, 16)

    def test_conversation(self):
        agent = self.agent(instructions="You help.", settings={"max_tokens": 16})
        first = agent.run_sync("Tell me about the sea.")
        second = agent.run_sync("Go on.", message_history=first.all_messages())
        self.assertTrue(second.output)
        self.assertEqual(len(second.all_messages()), 4)

    def test_stream(self):
        async def work():
            async with self.agent(settings={"max_tokens": 16}).run_stream("Hello.") as run:
                return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
        self.assertTrue("".join(asyncio.run(work())))

    def test_structured_output(self):
        for output in (NativeOutput(Town), ToolOutput(Town)):
            with self.subTest(type(output).__name__):
                result = self.agent(output_type=output).run_sync("Name a town.")
                self.assertIsInstance(result.output, Town)

    def test_streamed_structured_output(self):
        async def work():
            agent = self.agent(output_type=NativeOutput(Town))
            async with agent.run_stream("Name a town.") as run:
                return [town async for town in run.stream_output(debounce_by=None)]
        self.assertIsInstance(asyncio.run(work())[-1], Town)

    def test_tools(self):
        def settings(context):
            first = context.run_step == 1
            return {**SETTINGS, "tool_choice": "required" if first else "auto"}
        agent, calls = self.agent(), []

        @agent.tool_plain
        def weather(town: typing.Literal["Oslo", "Rome"],
                    days: typing.Annotated[int, pydantic.Field(ge=1, le=9)]) -> str:
            """The weather of a town."""
            calls.append((town, days))
            return f"{days} days of sun in {town}"
        result = agent.run_sync("How is the weather?", model_settings=settings,
                                usage_limits=UsageLimits(request_limit=3))
        self.assertEqual(len(calls), 1)
        self.assertTrue(result.output)
        returned = [part.content for message in result.all_messages() for part in message.parts
                    if part.part_kind == "tool-return"]
        self.assertEqual(returned, ["{1} days of sun in {0}".format(*calls[0])])

    def test_output_function(self):
        """A call of a function ends the run with what it returns."""
        def weather(town: typing.Literal["Oslo", "Rome"]) -> str:
            """The weather of a town."""
            return f"sun in {town}"
        result = self.agent(output_type=weather).run_sync("How is the weather?")
        self.assertIn(result.output, ["sun in Oslo", "sun in Rome"])

    def test_failures(self):
        with self.assertRaises(ModelHTTPError) as caught:
            self.agent(output_type=NativeOutput(Forbids)).run_sync("Name a town.")
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("response_format.json_schema.schema", str(caught.exception))
        with self.assertRaises(ModelHTTPError) as caught:
            self.agent("other").run_sync("Hello.")
        self.assertEqual(caught.exception.status_code, 404)


if __name__ == "__main__":
    unittest.main()
