"""Vectors by the official OpenAI client for Python, and by ollama's."""
import asyncio
import base64
import math
import struct
import unittest

import ollama
import openai

from server import ClientTest

TEXTS = ["In the beginning", "And it came to pass", "Tell me about the sea."]


def length(vector):
    return math.sqrt(sum(number * number for number in vector))


class EmbeddingsTest(ClientTest):
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def embed(self, text, **fields):
        answer = self.client.embeddings.create(model="demo", input=text, **fields)
        return [one.embedding for one in answer.data]

    def test_floats_and_base64_have_the_same_bits(self):
        floats = self.embed(TEXTS, encoding_format="float")
        texts = self.embed(TEXTS, encoding_format="base64")
        self.assertEqual(len(floats), 3)
        for vector, text in zip(floats, texts):
            self.assertEqual(struct.pack(f"<{len(vector)}f", *vector), base64.b64decode(text))
            self.assertAlmostEqual(length(vector), 1, places=5)

    def test_the_client_decodes_its_default(self):
        self.assertEqual(self.embed(TEXTS), self.embed(TEXTS, encoding_format="float"))

    def test_tokens_and_usage(self):
        answer = self.client.embeddings.create(model="demo", input=[[5, 6, 7], [8, 9]])
        self.assertEqual([one.index for one in answer.data], [0, 1])
        self.assertEqual(answer.usage.prompt_tokens, 5)
        self.assertEqual(answer.usage.total_tokens, 5)

    def test_dimensions(self):
        whole, = self.embed(TEXTS[0])
        short, = self.embed(TEXTS[0], dimensions=8)
        self.assertEqual(len(short), 8)
        self.assertAlmostEqual(length(short), 1, places=5)
        for a, b in zip(short, whole):
            self.assertAlmostEqual(a * length(whole[:8]), b, places=5)

    def test_a_batch_has_the_bits_of_its_texts_alone(self):
        for pooling in ("last", "mean"):
            extra = {"pooling": pooling}
            alone = [self.embed(text, extra_body=extra)[0] for text in TEXTS]
            self.assertEqual(self.embed(TEXTS * 8, extra_body=extra), alone * 8)
        self.assertNotEqual(self.embed(TEXTS[0]), self.embed(TEXTS[0], extra_body=extra))

    def test_many_at_once(self):
        expected = self.embed(TEXTS)

        async def all_at_once():
            async with openai.AsyncOpenAI(base_url=self.base_url, api_key="none") as client:
                return await asyncio.gather(
                    *(client.embeddings.create(model="demo", input=TEXTS) for _ in range(8)))

        for answer in asyncio.run(all_at_once()):
            self.assertEqual([one.embedding for one in answer.data], expected)

    def test_failures(self):
        for fields in ({"input": []}, {"input": [10 ** 9]},
                       {"input": "", "extra_body": {"add_special_tokens": False}},
                       {"input": "a", "dimensions": 10 ** 6},
                       {"input": "a", "encoding_format": "int8"}, {"input": "sea " * 5000}):
            with self.subTest(fields=str(fields)[:60]), \
                    self.assertRaises(openai.BadRequestError) as caught:
                self.client.embeddings.create(model="demo", **fields)
            self.assertIn(caught.exception.body["param"], fields)
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="other", input="a")

    def test_ollama(self):
        client = ollama.Client(host=self.server.url)
        answer = client.embed("demo:latest", TEXTS)
        self.assertEqual([list(vector) for vector in answer.embeddings], self.embed(TEXTS))
        self.assertEqual(list(client.embeddings("demo", TEXTS[0]).embedding),
                         self.embed(TEXTS[0])[0])


if __name__ == "__main__":
    unittest.main()
