"""guidellm: its report agrees with what the server counts, and what is refused is in it as an error."""
import json
import unittest

from load_generator import KEY, LoadGeneratorTest
from server import MODEL

REQUESTS = 12
PROMPT_TOKENS = 32
OUTPUT_TOKENS = 16


class GuidellmTest(LoadGeneratorTest):
    def measure(self, route, model="demo", key=KEY):
        """The only benchmark of the report of a run, and what the run printed."""
        report = self.folder / "report.json"
        printed = self.run_program(
            "guidellm", "run", "--disable-console-interactive",
            "--backend", f"kind=openai_http,target={self.server.url},model={model},api_key={key},"
            f"request_format={route}",
            "--profile", "kind=constant,rate=6",
            "--constraint", f"kind=max_requests,count={REQUESTS}",
            "--tokenizer", f"kind=huggingface_auto,model={MODEL}",
            "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
            "--output", f"kind=json,path={report}")
        self.assertTrue(report.exists(), printed)
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        return benchmark, printed

    def check(self, route):
        benchmark, printed = self.measure(route)
        metrics = benchmark["metrics"]
        self.assertEqual(metrics["request_totals"], {
            "successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}, printed)
        self.assertEqual(self.counted("vllm:request_success_total"), REQUESTS)
        tokens = metrics["output_token_count"]["successful"]
        self.assertEqual((tokens["min"], tokens["max"]), (OUTPUT_TOKENS, OUTPUT_TOKENS))
        self.assertEqual(tokens["total_sum"], self.counted("vllm:generation_tokens_total"))
        self.assertEqual(metrics["prompt_token_count"]["successful"]["total_sum"],
                         self.counted("vllm:prompt_tokens_total"))
        times = metrics["time_to_first_token_ms"]["successful"]
        self.assertEqual(times["count"], REQUESTS)
        self.assertGreater(times["min"], 0)

    def test_completions(self):
        self.check("/v1/completions")

    def test_chat(self):
        self.check("/v1/chat/completions")

    def refused(self, **wrong):
        benchmark, printed = self.measure("/v1/completions", **wrong)
        self.assertEqual(benchmark["metrics"]["request_totals"], {
            "successful": 0, "errored": REQUESTS, "incomplete": 0, "total": REQUESTS}, printed)
        self.assertEqual(self.counted("vllm:generation_tokens_total"), 0)
        return {request["info"]["error"] for request in benchmark["requests"]["errored"]}

    def test_unknown_model(self):
        (error,) = self.refused(model="other")
        self.assertIn("404", error)

    def test_wrong_key(self):
        (error,) = self.refused(key="wrong")
        self.assertIn("401", error)


if __name__ == "__main__":
    unittest.main()
