"""OpenAI's Agents SDK over chat completions: agents, tools, hand-overs, structured output."""
import asyncio
import typing
import unittest

import openai
import pydantic
from agents import (Agent, MaxTurnsExceeded, ModelSettings, OpenAIChatCompletionsModel, Runner,
                    function_tool, set_tracing_disabled)

from server import ClientTest

set_tracing_disabled(True)  # traces would go to OpenAI


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    people: int = pydantic.Field(ge=0, le=99999)


class Forbids(pydantic.BaseModel):
    """Its schema has `not`, which no grammar can hold."""
    model_config = pydantic.ConfigDict(json_schema_extra={"not": {"required": ["error"]}})
    name: str


class OpenAiAgentsTest(ClientTest):
    def setUp(self):
        self.calls = []

        @function_tool
        def weather(town: typing.Literal["Oslo", "Rome"],
                    days: typing.Annotated[int, pydantic.Field(ge=1, le=9)]) -> str:
            """The weather of a town."""
            self.calls.append((town, days))
            return f"{days} days of sun in {town}"
        self.weather = weather

    def run_async(self, work):
        """`work` is called with a model."""
        async def inner():
            async with openai.AsyncOpenAI(base_url=self.base_url, api_key="none",
                                          max_retries=0) as client:
                return await work(lambda name: OpenAIChatCompletionsModel(name, client))
        return asyncio.run(inner())

    def agent(self, model, **params):
        settings = {"temperature": 0, "max_tokens": 96, **params.pop("settings", {})}
        return Agent(name="Guide", instructions="You help.", model=model,
                     model_settings=ModelSettings(**settings), **params)

    def run_agent(self, name="demo", **params):
        return self.run_async(lambda model: Runner.run(
            self.agent(model(name), **params), "How is the weather?", max_turns=3))

    def test_chat(self):
        result = self.run_agent(settings={"max_tokens": 16})
        self.assertTrue(result.final_output)
        self.assertEqual(result.context_wrapper.usage.output_tokens, 16)

    def test_stream(self):
        async def work(model):
            run = Runner.run_streamed(self.agent(model("demo"), settings={"max_tokens": 16}),
                                      "How is the weather?")
            deltas = [event.data.delta async for event in run.stream_events()
                      if event.type == "raw_response_event" and
                      event.data.type == "response.output_text.delta"]
            return deltas, run.final_output
        deltas, final = self.run_async(work)
        self.assertGreater(len(deltas), 1)
        self.assertEqual("".join(deltas), final)

    def test_structured_output(self):
        self.assertIsInstance(self.run_agent(output_type=Town).final_output, Town)

    def test_stops_at_the_tool(self):
        result = self.run_agent(tools=[self.weather], tool_use_behavior="stop_on_first_tool",
                                settings={"tool_choice": "required"})
        town, days = self.calls[0]
        self.assertEqual(result.final_output, f"{days} days of sun in {town}")

    def test_goes_on_after_the_tool(self):
        # After the first call the SDK sets the choice back to auto, and the model answers.
        result = self.run_agent(tools=[self.weather], settings={"tool_choice": "required",
                                                                "parallel_tool_calls": False})
        self.assertEqual(len(self.calls), 1)
        self.assertTrue(result.final_output)
        self.assertEqual(len(result.raw_responses), 2)

    def test_streamed_tool(self):
        async def work(model):
            run = Runner.run_streamed(
                self.agent(model("demo"), tools=[self.weather],
                           tool_use_behavior="stop_on_first_tool",
                           settings={"tool_choice": "required"}), "How is the weather?")
            names = [event.name async for event in run.stream_events()
                     if event.type == "run_item_stream_event"]
            return names, run.final_output
        names, final = self.run_async(work)
        self.assertIn("tool_called", names)
        self.assertIn("days of sun in", final)

    def test_hand_over(self):
        async def work(model):
            other = self.agent(model("demo"), handoff_description="Knows towns.",
                               settings={"max_tokens": 16})
            other.name = "Mayor"
            first = self.agent(model("demo"), handoffs=[other],
                               settings={"tool_choice": "required", "parallel_tool_calls": False})
            return await Runner.run(first, "How is the weather?", max_turns=3)
        result = self.run_async(work)
        self.assertEqual(result.last_agent.name, "Mayor")

    def test_turns_are_limited(self):
        with self.assertRaises(MaxTurnsExceeded):
            self.run_agent(tools=[self.weather], reset_tool_choice=False,
                           settings={"tool_choice": "required", "parallel_tool_calls": False})
        self.assertEqual(len(self.calls), 3)

    def test_failures(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.run_agent(output_type=Forbids)
        self.assertIn("response_format.json_schema.schema", str(caught.exception))
        with self.assertRaises(openai.NotFoundError):
            self.run_agent("other")


if __name__ == "__main__":
    unittest.main()
