#!/usr/bin/env python3
"""Runs the commands of the program with the demo model, as a user would.

Usage: commands_test.py PROGRAM [unittest arguments]
"""
import http.client
import json
import os
import pathlib
import shutil
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import processes  # noqa: E402
from harness.cases import DEMO, ROOT, FolderTest, take_paths  # noqa: E402
from harness.fakes import make_certificate  # noqa: E402
from harness.http import send  # noqa: E402

MODEL = str(DEMO)
PROGRAM, = take_paths(1)
TIMEOUT_S = 240
RESULT_KEYS = """date backend model_id num_prompts request_rate burstiness max_concurrency duration
completed failed total_input_tokens total_output_tokens request_throughput request_goodput
output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests
mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms
p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms std_e2el_ms
p99_e2el_ms input_lens output_lens ttfts itls generated_texts errors""".split()


def run(*args, stdin="", status=0):
    return processes.run(PROGRAM, *args, input=stdin, limit_s=TIMEOUT_S, status=status)


def read_lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


class Commands(FolderTest):
    def serve(self, *flags, model=MODEL):
        server = processes.Server(PROGRAM, "serve", model, *flags)
        self.addCleanup(server.stop, signal.SIGKILL)
        server.wait_for("curl ")
        return server

    @staticmethod
    def begin(server, **fields):
        """A stream under way: its connection and its answer."""
        connection = server.connection()
        return connection, send(connection, "POST", "/v1/completions",
                                {"model": "demo", "ignore_eos": True, "stream": True, **fields})

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            pathlib.Path(path).write_text(text)
        return path

    def test_serve_answers_and_drains(self):
        server = self.serve("--max-num-seqs", "4")
        for words in ("parameters", "Context", "KV cache", "Device"):
            self.assertIn(words, server.output)
        self.assertEqual(server.get("/health")[0], 200)
        self.assertEqual(server.get("/ready")[0], 200)
        names = [m["id"] for m in server.json("/v1/models")["data"]]
        self.assertIn("demo", names)
        answer = server.json("/v1/completions", {"model": "demo", "prompt": "And it came to pass",
                                                 "max_tokens": 8, "temperature": 0})
        self.assertEqual(answer["usage"]["completion_tokens"], 8)
        self.assertEqual(server.stop(), 0)

    def test_a_request_under_way_is_finished_on_sigterm(self):
        server = self.serve()
        connection, answer = self.begin(server, prompt="In the beginning", max_tokens=200,
                                        temperature=0, stream_options={"include_usage": True})
        first = answer.readline()
        server.send_signal(signal.SIGTERM)
        text = (first + answer.read()).decode()
        self.assertIn("data: [DONE]", text)
        self.assertIn('"completion_tokens":200', text.replace(" ", ""))
        connection.close()
        self.assertEqual(server.process.wait(timeout=60), 0)

    def test_a_second_signal_leaves_at_once(self):
        server = self.serve("--shutdown-timeout", "100")
        connection, answer = self.begin(server, prompt="x", max_tokens=500, n=64)
        answer.readline()
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        begin = time.monotonic()
        self.assertIn(server.stop(), (0, 130))  # 0: the work was done before the second came
        self.assertLess(time.monotonic() - begin, 5)
        connection.close()

    def test_a_model_file_cut_short_under_it_is_one_line(self):
        model = self.folder / "demo"
        shutil.copytree(MODEL, model)
        server = self.serve(model=model)
        os.truncate(model / "model.safetensors", 4096)
        with self.assertRaises((OSError, http.client.HTTPException)):
            server.post("/v1/completions", {"prompt": "In the beginning", "max_tokens": 4})
        self.assertEqual(server.process.wait(timeout=60), 1)
        self.assertIn("a model file became shorter", server.lines[-1])

    def test_keys_are_asked_for(self):
        server = self.serve("--api-key", "sesame", "--served-model-name", "demo")
        self.assertIn("Authorization", server.output)
        self.assertNotIn("sesame", server.output)
        self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[0], 401)
        run("bench", "serve", "--base-url", server.url, "--api-key", "sesame", "--num-prompts", "2",
            "--input-len", "8", "--output-len", "2")
        self.assertEqual(server.stop(), 0)

    def test_a_port_in_use_is_one_line(self):
        server = self.serve()
        port = server.url.rsplit(":", 1)[1]
        done = run("serve", MODEL, "--port", port, "--log-level", "error", status=1)
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn(port, done.stderr)
        self.assertEqual(server.stop(), 0)

    def test_tls_is_one_pair_of_files_away(self):
        certificate, key = make_certificate(self.folder)
        server = self.serve("--ssl-certfile", certificate, "--ssl-keyfile", key)
        self.assertTrue(server.url.startswith("https://"))
        flags = ["bench", "serve", "--base-url", server.url, "--num-prompts", "2", "--input-len",
                 "8", "--output-len", "2"]
        self.assertIn("certificate", run(*flags, status=1).stderr)
        run(*flags, "--insecure")
        self.assertEqual(server.stop(), 0)

    def test_the_traces_replay(self):
        server = self.serve()
        trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
            f"2023-11-16 18:15:{46 + i}.5000000,{30 + i},{4 + i}\n" for i in range(4))
        flags = ["bench", "serve", "--base-url", server.url, "--ignore-eos", "--save-result",
                 "--save-detailed", "--result-filename", self.path("r.json")]
        run(*flags, "--dataset-name", "trace", "--dataset-path", self.path("t.csv", trace),
            "--request-rate", "20")
        result = json.loads(pathlib.Path(self.path("r.json")).read_text())
        self.assertEqual(result["input_lens"], [30, 31, 32, 33])
        self.assertEqual(result["output_lens"], [4, 5, 6, 7])
        done = run(*flags, "--dataset-name", "orca", "--num-prompts", "3")
        self.assertIn("Median E2EL / tokens (ms):", done.stdout)
        self.assertEqual(server.stop(), 0)

    def test_bench_serve_counts_exactly(self):
        server = self.serve()
        done = run("bench", "serve", "--base-url", server.url, "--num-prompts", "6",
                   "--random-input-len", "20", "--random-output-len", "5", "--ignore-eos",
                   "--request-rate", "50", "--goodput", "e2el:60000", "--save-result",
                   "--save-detailed", "--result-dir", self.folder, "--result-filename", "r.json",
                   "--percentile-metrics", "ttft,tpot,itl,e2el", "--num-warmups", "2")
        self.assertIn("============ Serving Benchmark Result ============", done.stdout)
        self.assertRegex(done.stdout, r"Successful requests: +6 ")
        result = json.loads(pathlib.Path(self.path("r.json")).read_text())
        self.assertEqual([k for k in RESULT_KEYS if k not in result], [])
        self.assertEqual(result["input_lens"], [20] * 6)
        self.assertEqual(result["output_lens"], [5] * 6)
        self.assertEqual(result["request_goodput"], result["request_throughput"])
        self.assertEqual(result["errors"], [""] * 6)
        self.assertEqual(server.stop(), 0)

    def test_bench_serve_shows_failures(self):
        server = self.serve("--max-model-len", "64")
        lines = [json.dumps({"prompt": [5] * n, "output_tokens": 2}) for n in (10, 100, 10)]
        done = run("bench", "serve", "--base-url", server.url, "--dataset-name", "custom",
                   "--dataset-path", self.path("d.jsonl", "\n".join(lines)))
        self.assertRegex(done.stdout, r"Failed requests: +1 ")
        self.assertIn("Error 0: HTTP 400", done.stdout)
        self.assertEqual(server.stop(), 0)

    def test_generate_goes_on_after_a_kill(self):
        prompts = self.path("p.txt", "".join(f"Chapter {i}. The\n" for i in range(12)))
        whole, torn = self.path("whole.jsonl"), self.path("torn.jsonl")
        flags = ["generate", MODEL, "--prompts", prompts, "--max-tokens", "12", "--temperature", "0"]
        run(*flags, "--out", whole)
        wanted = {line["custom_id"]: line for line in read_lines(whole)}
        self.assertEqual(len(wanted), 12)
        content = pathlib.Path(whole).read_bytes()
        pathlib.Path(torn).write_bytes(content[: len(content) // 2])
        run(*flags, "--out", torn)
        lines = read_lines(torn)
        self.assertEqual(len(lines), 12)
        self.assertEqual({line["custom_id"]: line for line in lines}, wanted)
        before = os.stat(torn).st_mtime_ns
        run(*flags, "--out", torn)  # nothing left to do
        self.assertEqual(os.stat(torn).st_mtime_ns, before)

    def test_generate_speaks_the_batch_format(self):
        body = {"messages": [{"role": "user", "content": "Tell me of the sea."}], "max_tokens": 5}
        items = [
            {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": body},
            {"custom_id": "bad", "url": "/v1/completions", "body": {"prompt": "x", "top_p": 7}},
        ]
        out = self.path("out.jsonl")
        run("generate", MODEL, "--prompts",
            self.path("b.jsonl", "\n".join(map(json.dumps, items))), "--out", out, status=1)
        lines = {line["custom_id"]: line["response"] for line in read_lines(out)}
        self.assertEqual(lines["chat"]["status_code"], 200)
        self.assertEqual(lines["chat"]["body"]["usage"]["completion_tokens"], 5)
        self.assertEqual(lines["bad"]["status_code"], 400)
        self.assertIn("top_p", lines["bad"]["body"]["error"]["message"])

    def test_chat_reads_a_pipe(self):
        flags = ["chat", MODEL, "--temperature", "0", "--max-tokens", "10"]
        question = "Tell me about the sea.\n"
        once = run(*flags, stdin=question).stdout
        self.assertTrue(once.strip())
        again = run(*flags, stdin=question + "/reset\n" + question + "/quit\nnot asked\n").stdout
        self.assertEqual(again, once + once)
        self.assertIn("unknown command", run(*flags, stdin="/bogus\n", status=1).stderr)

    def test_make_model_and_the_engine_benchmarks(self):
        model = self.path("tiny")
        run("make-model", "--shape", "llama-160m", "--layers", "2", "--hidden", "64", "--heads",
            "4", "--kv-heads", "4", "--head-dim", "16", "--intermediate", "128", "--positions",
            "256", "--seed", "3", model)
        out = self.path("t.json")
        done = run("bench", "throughput", model, "--num-prompts", "5", "--input-len", "16",
                   "--output-len", "4", "--random-vocab-size", "50", "--output-json", out)
        self.assertRegex(done.stdout, r"Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s")
        self.assertEqual(json.loads(pathlib.Path(out).read_text())["total_num_tokens"], 100)
        done = run("bench", "latency", model, "--batch-size", "2", "--input-len", "8",
                   "--output-len", "4", "--num-iters-warmup", "1", "--num-iters", "3")
        self.assertRegex(done.stdout, r"Avg latency: [\d.]+ seconds\n")
        self.assertIn("99% percentile latency", done.stdout)

    def test_profile_measures_steps_into_a_file(self):
        out = self.path("profile.json")
        done = run("profile", MODEL, "--max-tokens", "128", "--max-context", "256",
                   "--max-num-seqs", "8", "--repeats", "3", "--output", out)
        self.assertRegex(done.stdout, r"Fit +P50 [\d.]+ %, P95 [\d.]+ %, max [\d.]+ % over \d+ rows")
        self.assertRegex(done.stdout, r"Saturation +\d+ prompt tokens")
        self.assertIn("Measuring 100%", done.stderr)
        profile = json.loads(pathlib.Path(out).read_text())
        self.assertEqual((profile["format"], profile["version"]), ("millrace-profile", 1))
        self.assertEqual(profile["model"]["num_layers"],
                         json.loads((ROOT / "models/demo/config.json").read_text())
                         ["num_hidden_layers"])
        for part in ("step", "layers"):
            fit = profile[part]
            numbers = [fit["fixed_s"], fit["prefill_squared_s"], fit["decode_context_s"],
                       *fit["token_s"], *fit["sequence_s"]]
            self.assertTrue(all(x >= 0 for x in numbers), numbers)
            self.assertGreater(sum(numbers), 0)
        self.assertGreater(profile["memory_copy_bytes_per_s"], 0)
        for row in profile["samples"]:
            self.assertGreater(row[5], row[6])
            self.assertGreater(row[6], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
