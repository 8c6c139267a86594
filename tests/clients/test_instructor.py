"""Instructor: models of Pydantic, by JSON schema and by tool calls."""
import asyncio
import typing
import unittest

import instructor
import openai
import pydantic
from instructor.core.exceptions import InstructorRetryException

from server import ClientTest

MESSAGES = [{"role": "user", "content": "Name a town."}]
MODES = [instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS]


class Town(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=12)
    people: int = pydantic.Field(ge=0, le=99999)
    kind: typing.Literal["port", "market"]


class Forbids(pydantic.BaseModel):
    """Its schema has `not`, which no grammar can hold."""
    model_config = pydantic.ConfigDict(json_schema_extra={"not": {"required": ["error"]}})
    name: str


class InstructorTest(ClientTest):
    def client(self, mode):
        return instructor.from_openai(
            openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0), mode=mode)

    def ask(self, mode, **params):
        return self.client(mode).chat.completions.create(**{
            "model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 128,
            "max_retries": 0, **params})

    def test_chat(self):
        answer = self.ask(MODES[0], response_model=None, max_tokens=16)
        self.assertTrue(answer.choices[0].message.content)

    def test_models(self):
        for mode in MODES:
            with self.subTest(mode):
                town, raw = self.client(mode).chat.completions.create_with_completion(
                    model="demo", messages=MESSAGES, temperature=0, max_tokens=128,
                    max_retries=0, response_model=Town)
                self.assertIsInstance(town, Town)
                self.assertGreater(raw.usage.completion_tokens, 0)

    def test_stream(self):
        for mode in MODES:
            with self.subTest(mode):
                towns = list(self.client(mode).chat.completions.create_partial(
                    model="demo", messages=MESSAGES, temperature=0, max_tokens=128,
                    response_model=Town))
                self.assertGreater(len(towns), 2)
                Town.model_validate(towns[-1].model_dump())

    def test_async(self):
        async def work():
            async with openai.AsyncOpenAI(base_url=self.base_url, api_key="none") as plain:
                client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
                return await client.chat.completions.create(
                    model="demo", messages=MESSAGES, temperature=0, max_tokens=128,
                    response_model=Town)
        self.assertIsInstance(asyncio.run(work()), Town)

    def test_asks_again(self):
        """What a validator of the client refuses is asked for again, with its message."""
        class Odd(Town):
            tries: typing.ClassVar[list] = []

            @pydantic.model_validator(mode="after")
            def check(self):
                self.tries.append(self.people)
                if len(self.tries) < 2:
                    raise ValueError("that is not the town")
                return self
        for mode in MODES:
            with self.subTest(mode):
                Odd.tries.clear()
                self.assertIsInstance(self.ask(mode, response_model=Odd, max_retries=2), Odd)
                self.assertEqual(len(Odd.tries), 2)

    def test_failures(self):
        with self.assertRaises((InstructorRetryException, openai.BadRequestError)) as caught:
            self.ask(instructor.Mode.JSON_SCHEMA, response_model=Forbids)
        self.assertIn("response_format.json_schema.schema", str(caught.exception))
        with self.assertRaises((InstructorRetryException, openai.NotFoundError)) as caught:
            self.ask(instructor.Mode.TOOLS, response_model=Town, model="other")
        self.assertIn("404", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
