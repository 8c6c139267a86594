"""The official OpenAI client for Python, over files and batches."""
import io
import json
import time
import unittest

import openai

from server import ClientTest

ENDPOINT = "/v1/chat/completions"


def line(number, **fields):
    body = {"model": "demo", "messages": [{"role": "user", "content": f"Number {number}?"}],
            "max_tokens": 8, "temperature": 0, **fields}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": ENDPOINT, "body": body})


class BatchesTest(ClientTest):
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.base_url, api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def upload(self, *lines):
        content = io.BytesIO("\n".join(lines).encode())
        return self.client.files.create(file=("requests.jsonl", content), purpose="batch")

    def ended(self, batch):
        while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
            time.sleep(0.05)
            batch = self.client.batches.retrieve(batch.id)
        return batch

    def create(self, file):
        return self.client.batches.create(input_file_id=file.id, endpoint=ENDPOINT,
                                          completion_window="24h", metadata={"of": "test"})

    def test_batch(self):
        file = self.upload(*(line(i) for i in range(20)), line(20, temperature=-1))
        self.assertIn(file.id, [found.id for found in self.client.files.list(purpose="batch")])
        batch = self.ended(self.create(file))
        self.assertEqual(batch.status, "completed")
        self.assertEqual((batch.request_counts.completed, batch.request_counts.failed), (20, 1))
        results = {found["custom_id"]: found["response"]["body"] for found in map(
            json.loads, self.client.files.content(batch.output_file_id).text.splitlines())}
        alone = self.client.chat.completions.create(**json.loads(line(7))["body"])
        self.assertEqual(results["r7"]["choices"][0]["message"]["content"],
                         alone.choices[0].message.content)
        error = json.loads(self.client.files.content(batch.error_file_id).text)
        self.assertEqual(error["response"]["status_code"], 400)
        self.assertIn(batch.id, [found.id for found in self.client.batches.list(limit=1)])

    def test_cancel(self):
        batch = self.create(self.upload(*(line(i, max_tokens=400) for i in range(300))))
        self.assertEqual(self.client.batches.cancel(batch.id).status, "cancelling")
        self.assertEqual(self.ended(batch).status, "cancelled")

    def test_failures(self):
        failed = self.create(self.upload("{}"))
        self.assertEqual(failed.status, "failed")
        self.assertEqual(failed.errors.data[0].line, 1)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve("file-none")
        with self.assertRaisesRegex(openai.BadRequestError, "purpose"):
            self.client.files.create(file=b"x", purpose="assistants")
        file = self.upload(line(0))
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaisesRegex(openai.BadRequestError, file.id):
            self.create(file)


if __name__ == "__main__":
    unittest.main()
