"""Hugging Face's smolagents: its OpenAI model, and an agent that calls tools."""
import json
import unittest

import openai
from smolagents import OpenAIModel, Tool, ToolCallingAgent
from smolagents.agents import EMPTY_PROMPT_TEMPLATES
from smolagents.models import ChatMessage, MessageRole, agglomerate_stream_deltas
from smolagents.monitoring import LogLevel

from server import ClientTest

SEEDS_MAX = 16
TOWNS = ["Oslo", "Rome"]
MESSAGES = [ChatMessage(role=MessageRole.USER,
                        content=[{"type": "text", "text": "Tell me about the sea."}])]
TOWN = {"type": "object", "additionalProperties": False, "required": ["name", "people"],
        "properties": {"name": {"type": "string", "maxLength": 12},
                       "people": {"type": "integer", "minimum": 0, "maximum": 99999}}}


class Weather(Tool):
    name = "weather"
    description = "The weather of a town."
    inputs = {"town": {"type": "string", "enum": TOWNS, "description": "Oslo or Rome"}}
    output_type = "string"

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, town: str) -> str:
        self.calls.append(town)
        return f"sun in {town}"


def format_of(schema):
    return {"type": "json_schema", "json_schema": {"name": "town", "schema": schema}}


class SmolagentsTest(ClientTest):
    def model(self, name="demo", **params):
        return OpenAIModel(name, api_base=self.base_url, api_key="none", **{
            "client_kwargs": {"max_retries": 0}, "temperature": 0, "max_tokens": 96,
            "parallel_tool_calls": False, **params})

    def test_chat(self):
        answer = self.model(max_tokens=16).generate(MESSAGES)
        self.assertTrue(answer.content)
        self.assertEqual(answer.token_usage.output_tokens, 16)

    def test_stream(self):
        model = self.model(max_tokens=16)
        whole = agglomerate_stream_deltas(list(model.generate_stream(MESSAGES)))
        self.assertEqual(whole.content, model.generate(MESSAGES).content)

    def test_structured_output(self):
        answer = self.model().generate(MESSAGES, response_format=format_of(TOWN))
        self.assertEqual(set(json.loads(answer.content)), {"name", "people"})

    def test_tool(self):
        tool = Weather()
        ends = self.likelier(["}"], by=30)
        answer = self.model(logit_bias=ends).generate(MESSAGES, tools_to_call_from=[tool])
        call = answer.tool_calls[0].function
        self.assertIn(tool(**json.loads(call.arguments)), [f"sun in {town}" for town in TOWNS])

    def run_agent(self, tool, **params):
        # Its own prompt is longer than the context of the demo model.
        agent = ToolCallingAgent([tool], self.model(**params), max_steps=2,
                                 verbosity_level=LogLevel.OFF,
                                 prompt_templates=EMPTY_PROMPT_TEMPLATES)
        return agent.run("How is the weather?", return_full_result=True)

    def test_agent(self):
        """Each step calls a tool that the model chooses: this one, or the one that ends the run."""
        tool = Weather()
        # Its schemas leave room for arguments without end.
        ends = self.likelier(["}"], by=30)
        for seed in range(SEEDS_MAX):
            result = self.run_agent(tool, temperature=1, seed=seed, logit_bias=ends)
            self.assertIn(result.state, ["success", "max_steps_error"])
            if tool.calls:
                break
        self.assertIn(tool.calls[0], TOWNS)
        observed = [step.get("observations") for step in result.steps]
        self.assertIn(f"sun in {tool.calls[0]}", observed)

    def test_failures(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.model().generate(MESSAGES, response_format=format_of({**TOWN, "not": {}}))
        self.assertIn("response_format.json_schema.schema", caught.exception.message)
        with self.assertRaises(openai.NotFoundError):
            self.model("other").generate(MESSAGES)


if __name__ == "__main__":
    unittest.main()
