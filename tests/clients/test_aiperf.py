"""aiperf: its report agrees with what the server counts, and what is refused is in it as an error."""
import json
import unittest

from load_generator import KEY, LoadGeneratorTest
from server import MODEL

REQUESTS = 12
PROMPT_TOKENS = 32
OUTPUT_TOKENS = 16


class AiperfTest(LoadGeneratorTest):
    def measure(self, endpoint, model="demo", key=KEY):
        """What a run prints. Its reports are in `out`."""
        # With HF_HUB_OFFLINE it would look for the tokenizer's folder among downloaded models.
        return self.run_program(
            "aiperf", "profile", "--model", model, "--url", self.server.url, "--api-key", key,
            "--endpoint-type", endpoint, "--streaming", "--tokenizer", MODEL,
            "--request-count", REQUESTS, "--request-rate", 6, "--workers-max", 1,
            "--isl", PROMPT_TOKENS, "--osl", OUTPUT_TOKENS, "--extra-inputs", "ignore_eos:true",
            "--use-server-token-count", "--ui", "none", "--no-gpu-telemetry",
            "--output-artifact-dir", self.folder / "out", without=("HF_HUB_OFFLINE",))

    def check(self, endpoint):
        printed = self.measure(endpoint)
        path = self.folder / "out/profile_export_aiperf.json"
        self.assertTrue(path.exists(), printed)
        report = json.loads(path.read_text())
        self.assertEqual(report["request_count"]["avg"], REQUESTS, printed)
        self.assertEqual(report["error_summary"], [])
        self.assertEqual(self.counted("vllm:request_success_total"), REQUESTS)
        tokens = report["output_sequence_length"]
        self.assertEqual((tokens["min"], tokens["max"]), (OUTPUT_TOKENS, OUTPUT_TOKENS))
        self.assertEqual(report["total_usage_completion_tokens"]["avg"],
                         self.counted("vllm:generation_tokens_total"))
        self.assertEqual(report["total_usage_prompt_tokens"]["avg"],
                         self.counted("vllm:prompt_tokens_total"))
        self.assertEqual(report["time_to_first_token"]["count"], REQUESTS)
        self.assertGreater(report["time_to_first_token"]["min"], 0)

    def test_completions(self):
        self.check("completions")

    def test_chat(self):
        self.check("chat")

    def refused(self, **wrong):
        """The status of all requests of a run. There is no summary where none succeeded."""
        printed = self.measure("completions", **wrong)
        self.assertIn(f"All {REQUESTS} inference request(s) failed", printed)
        self.assertEqual(self.counted("vllm:generation_tokens_total"), 0)
        lines = (self.folder / "out/profile_export.jsonl").read_text().splitlines()
        self.assertEqual(len(lines), REQUESTS)
        (status,) = {json.loads(line)["error"]["code"] for line in lines}
        return status

    def test_unknown_model(self):
        self.assertEqual(self.refused(model="other"), 404)

    def test_wrong_key(self):
        self.assertEqual(self.refused(key="wrong"), 401)


if __name__ == "__main__":
    unittest.main()
