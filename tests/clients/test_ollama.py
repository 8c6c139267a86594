"""ollama's client for Python."""
import json
import unittest

import ollama

from server import ClientTest

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
OPTIONS = {"num_predict": 24, "temperature": 0}
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["kind"],
          "properties": {"kind": {"enum": ["port", "market"]}}}


class OllamaTest(ClientTest):
    def setUp(self):
        self.client = ollama.Client(host=self.server.url)

    def test_list_and_show(self):
        self.assertEqual([model.model for model in self.client.list().models], ["demo"])
        self.assertIn("completion", self.client.show("demo").capabilities)

    def test_chat_and_its_stream(self):
        whole = self.client.chat("demo:latest", MESSAGES, options=OPTIONS)
        self.assertTrue(whole.done)
        self.assertEqual(whole.done_reason, "length")
        self.assertEqual(whole.eval_count, 24)
        parts = list(self.client.chat("demo", MESSAGES, stream=True, options=OPTIONS))
        self.assertEqual("".join(part.message.content for part in parts), whole.message.content)
        self.assertTrue(parts[-1].done)

    def test_generate(self):
        answer = self.client.generate("demo", "Tell me about the sea.", options=OPTIONS)
        self.assertTrue(answer.response)

    def test_format(self):
        answer = self.client.chat("demo", MESSAGES, format=SCHEMA, options={"num_predict": 200})
        self.assertIn(json.loads(answer.message.content)["kind"], ("port", "market"))

    def test_failures(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat("other", MESSAGES)
        self.assertEqual(caught.exception.status_code, 404)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat("demo", MESSAGES, format={"not": {}})
        self.assertEqual(caught.exception.status_code, 400)


if __name__ == "__main__":
    unittest.main()
