"""LiteLLM: as a library, through its providers for servers that speak OpenAI's API."""
import asyncio
import json
import unittest

import litellm
import pydantic

from server import ClientTest

litellm.suppress_debug_info = True

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
PROVIDERS = ["openai/demo", "hosted_vllm/demo"]


class Town(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    people: int = pydantic.Field(ge=0, le=99999)


class Forbids(pydantic.BaseModel):
    """Its schema has `not`, which no grammar can hold."""
    model_config = pydantic.ConfigDict(json_schema_extra={"not": {"required": ["error"]}})
    name: str


def weather(town, days):
    return f"{days} days of sun in {town}"


# hosted_vllm drops `additionalProperties`, which makes room for arguments without end.
TOOL = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a town.", "strict": True, "parameters": {
        "type": "object", "additionalProperties": False, "maxProperties": 2,
        "required": ["town", "days"],
        "properties": {"town": {"enum": ["Oslo", "Rome"]},
                       "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}}


class LiteLlmTest(ClientTest):
    def ask(self, model, **params):
        return litellm.completion(**{
            "model": model, "api_base": self.base_url, "api_key": "none", "messages": MESSAGES,
            "temperature": 0, "max_tokens": 96, "num_retries": 0, **params})

    def test_chat(self):
        for model in PROVIDERS:
            with self.subTest(model):
                answer = self.ask(model, max_tokens=16)
                self.assertTrue(answer.choices[0].message.content)
                self.assertEqual(answer.usage.completion_tokens, 16)

    def test_stream(self):
        for model in PROVIDERS:
            with self.subTest(model):
                chunks = list(self.ask(model, max_tokens=16, stream=True,
                                       stream_options={"include_usage": True}))
                whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
                self.assertEqual(whole.choices[0].message.content,
                                 self.ask(model, max_tokens=16).choices[0].message.content)
                self.assertEqual(whole.usage.completion_tokens, 16)

    def test_async(self):
        answer = asyncio.run(litellm.acompletion(
            model=PROVIDERS[0], api_base=self.base_url, api_key="none", messages=MESSAGES,
            max_tokens=8))
        self.assertTrue(answer.choices[0].message.content)

    def test_text_completion(self):
        answer = litellm.text_completion(
            model="text-completion-openai/demo", api_base=self.base_url, api_key="none",
            prompt="In the beginning", max_tokens=8)
        self.assertTrue(answer.choices[0].text)

    def test_structured_output(self):
        for model in PROVIDERS:
            with self.subTest(model):
                answer = self.ask(model, response_format=Town)
                Town.model_validate_json(answer.choices[0].message.content)

    def test_tools(self):
        for model in PROVIDERS:
            with self.subTest(model):
                answer = self.ask(model, tools=[TOOL], tool_choice="required",
                                  parallel_tool_calls=False)
                self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
                call, = answer.choices[0].message.tool_calls
                result = weather(**json.loads(call.function.arguments))
                self.assertIn("days of sun in", result)
                after = self.ask(model, max_tokens=16, tools=[TOOL], messages=[
                    *MESSAGES, answer.choices[0].message,
                    {"role": "tool", "tool_call_id": call.id, "content": result}])
                self.assertTrue(after.choices[0].message.content)

    def test_streamed_tools(self):
        chunks = list(self.ask(PROVIDERS[0], tools=[TOOL], stream=True, tool_choice={
            "type": "function", "function": {"name": "weather"}}))
        whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
        arguments = whole.choices[0].message.tool_calls[0].function.arguments
        self.assertIn("days of sun in", weather(**json.loads(arguments)))

    def test_failures(self):
        for model in PROVIDERS:
            with self.subTest(model):
                with self.assertRaises(litellm.BadRequestError) as caught:
                    self.ask(model, response_format=Forbids)
                self.assertIn("response_format.json_schema.schema", str(caught.exception))
                with self.assertRaises(litellm.NotFoundError):
                    self.ask(model.replace("demo", "other"))


if __name__ == "__main__":
    unittest.main()
