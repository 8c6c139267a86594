"""LangChain's ChatOpenAI: messages, structured output, tools, and a loop of calls and answers."""
import asyncio
import typing
import unittest

import openai
import pydantic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from server import ClientTest


class Town(pydantic.BaseModel):
    """A town."""
    name: str = pydantic.Field(max_length=12)
    people: int = pydantic.Field(ge=0, le=99999)


@tool
def weather(town: typing.Literal["Oslo", "Rome"],
            days: typing.Annotated[int, pydantic.Field(ge=1, le=9)]) -> str:
    """The weather of a town."""
    return f"{days} days of sun in {town}"


class LangChainTest(ClientTest):
    def model(self, name="demo", max_tokens=96):
        return ChatOpenAI(model=name, base_url=self.base_url, api_key="none", temperature=0,
                          max_tokens=max_tokens, max_retries=0)

    def test_chat(self):
        answer = self.model(max_tokens=16).invoke("Tell me about the sea.")
        self.assertTrue(answer.content)
        self.assertEqual(answer.usage_metadata["output_tokens"], 16)
        self.assertEqual(answer.response_metadata["model_name"], "demo")

    def test_stream(self):
        model = self.model(max_tokens=16)
        chunks = list(model.stream("Tell me about the sea."))
        self.assertEqual("".join(chunk.content for chunk in chunks),
                         model.invoke("Tell me about the sea.").content)
        self.assertGreater(len(chunks), 2)

    def test_batch(self):
        answers = self.model(max_tokens=8).batch(["Tell me about the sea.", "Tell me about rain."])
        self.assertEqual(len(answers), 2)

    def test_async(self):
        async def pieces():
            return [chunk async for chunk in self.model(max_tokens=8).astream("Hello.")]
        self.assertTrue(asyncio.run(pieces()))

    def test_structured_output(self):
        for method in ("json_schema", "function_calling"):
            with self.subTest(method):
                asked = self.model().with_structured_output(Town, method=method, strict=True)
                self.assertIsInstance(asked.invoke("Name a town."), Town)

    def test_streamed_structured_output(self):
        asked = self.model().with_structured_output(Town)
        self.assertIsInstance(list(asked.stream("Name a town."))[-1], Town)

    def test_tools(self):
        messages = [HumanMessage("How is the weather?")]
        asking = self.model().bind_tools([weather], tool_choice="required", strict=True,
                                         parallel_tool_calls=False)
        answer = asking.invoke(messages)
        call, = answer.tool_calls
        self.assertEqual(call["name"], "weather")
        result = weather.invoke(call)
        self.assertIsInstance(result, ToolMessage)
        self.assertIn("days of sun in", result.content)
        after = self.model(max_tokens=16).bind_tools([weather]).invoke([*messages, answer, result])
        self.assertTrue(after.content)

    def test_streamed_tools(self):
        asking = self.model().bind_tools([weather], tool_choice="weather", strict=True)
        whole = None
        for chunk in asking.stream("How is the weather?"):
            whole = chunk if whole is None else whole + chunk
        self.assertIn("days of sun in", weather.invoke(whole.tool_calls[0]["args"]))

    def test_failures(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.model().with_structured_output({
                "title": "town", "type": "object", "properties": {"name": {"type": "string"}},
                "not": {"required": ["name"]}}, method="json_schema").invoke("Name a town.")
        self.assertIn("response_format.json_schema.schema", str(caught.exception))
        self.assertIn('"not"', caught.exception.message)
        with self.assertRaises(openai.NotFoundError):
            self.model("other").invoke("Hello.")


if __name__ == "__main__":
    unittest.main()
