"""EleutherAI's lm-evaluation-harness: its scores over the server are those of transformers.

Both sides are the unmodified harness, as its users start it, with the tasks of lm_eval_tasks. The reference computes in
float32 from the same weights. The tolerances are of log-likelihoods in nats.
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy

from server import MODEL, Server

HERE = pathlib.Path(__file__).parent
RUN_LIMIT_S = 400
TASKS = ("endings", "perplexity", "continuations")
DOCUMENTS = 32
# In float32, where only the order of additions differs.
F32_TOLERANCE = 2e-4
# As served, where activations, keys and values are rounded to bf16. Of an ending, and of a whole text.
BF16_TOLERANCES = 0.1, 0.2
# As served, a greedy text changes where two tokens are about equally likely.
BF16_TEXTS_CHANGED_MAX = 2


def widened(folder, target):
    """The same model with its bf16 weights stored as f32, which changes no value."""
    shutil.copytree(folder, target)
    path = target / "model.safetensors"
    stored = path.read_bytes()
    (length,) = struct.unpack_from("<Q", stored)
    tensors, data = json.loads(stored[8:8 + length]), stored[8 + length:]
    tensors.pop("__metadata__", None)
    parts, at = [], 0
    for tensor in tensors.values():
        assert tensor["dtype"] == "BF16"
        begin, end = tensor["data_offsets"]
        halves = numpy.frombuffer(data[begin:end], "<u2")
        parts.append((halves.astype("<u4") << 16).tobytes())
        tensor.update(dtype="F32", data_offsets=[at, at + len(parts[-1])])
        at += len(parts[-1])
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(parts))


class Run:
    """One run of the command. `scores` is {(task, metric): value}, `answers` {task: [answers of a document]}."""

    def __init__(self, folder, model, arguments, *flags, tasks=TASKS):
        out = tempfile.mkdtemp(dir=folder)
        # One thread: torch's threads wait for each other when the machine is busy.
        env = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1",
               "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "none"}
        command = [pathlib.Path(sys.executable).with_name("lm_eval"), "run", "--model", model,
                   "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()),
                   "--include_path", "lm_eval_tasks", "--tasks", *tasks, "--log_samples",
                   "--output_path", out, *flags]
        done = subprocess.run(command, cwd=HERE, env=env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=RUN_LIMIT_S, check=False)
        self.status, self.output = done.returncode, done.stdout
        self.scores, self.answers = {}, {}
        for path in pathlib.Path(out).rglob("results_*.json"):
            for task, metrics in json.loads(path.read_text())["results"].items():
                self.scores.update({(task, name.removesuffix(",none")): value
                                    for name, value in metrics.items() if name.endswith(",none")})
        for task in tasks:
            for path in pathlib.Path(out).rglob(f"samples_{task}_*.jsonl"):
                samples = sorted(map(json.loads, path.read_text().splitlines()),
                                 key=lambda sample: sample["doc_id"])
                self.answers[task] = [[first for first, *_ in sample["resps"]] for sample in samples]


class LmEvalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.served = cls.serve(MODEL)
        widened(MODEL, cls.folder / "widened")
        cls.exact = cls.serve(cls.folder / "widened")
        cls.reference = cls.with_transformers()

    @classmethod
    def serve(cls, model):
        server = Server(model=model)
        cls.addClassCleanup(server.stop)
        return server

    @classmethod
    def with_transformers(cls, *flags, **more):
        run = Run(cls.folder, "hf", {"pretrained": MODEL, "dtype": "float32", "add_bos_token": True},
                  "--device", "cpu", "--batch_size", "8", *flags, **more)
        assert run.status == 0, run.output
        return run

    def over(self, server, *flags, model="local-completions", tasks=TASKS, **arguments):
        route = "chat/completions" if "chat" in model else "completions"
        run = Run(self.folder, model, {
            "model": "demo", "base_url": f"{server.url}/v1/{route}", "max_retries": 1, **arguments},
            *flags, tasks=tasks)
        self.assertEqual(run.status, 0, run.output)
        return run

    def by_tokens(self, server):
        """With token ids of the folder's tokenizer, which is the harness's usual way."""
        return self.over(server, tokenizer=MODEL, tokenizer_backend="huggingface", max_length=1024,
                         add_bos_token=True, num_concurrent=4)

    def likelihoods(self, run):
        """(log-likelihood, whether the text is the greedy one) of all endings, and of whole texts."""
        endings = [(float(value), greedy) for answers in run.answers["endings"]
                   for value, greedy in answers]
        texts = [float(value) for (value,) in run.answers["perplexity"]]
        self.assertEqual((len(endings), len(texts)), (3 * DOCUMENTS, DOCUMENTS))
        return endings, texts

    def check_likelihoods(self, run, of_ending, of_text):
        endings, texts = self.likelihoods(run)
        wanted_endings, wanted_texts = self.likelihoods(self.reference)
        self.assertEqual({greedy for _, greedy in wanted_endings}, {"False", "True"})
        for (value, greedy), (wanted, wanted_greedy) in zip(endings, wanted_endings, strict=True):
            self.assertAlmostEqual(value, wanted, delta=of_ending)
            self.assertEqual(greedy, wanted_greedy)
        for value, wanted in zip(texts, wanted_texts, strict=True):
            self.assertAlmostEqual(value, wanted, delta=of_text)

    def check_scores(self, run, names, tolerance):
        """All these scores are the reference's, up to a factor of 1 plus or minus the tolerance."""
        wanted = {key: value for key, value in self.reference.scores.items() if key[1] in names}
        self.assertEqual({name for _, name in wanted}, set(names))
        for key, value in wanted.items():
            self.assertAlmostEqual(run.scores[key] / value, 1, delta=tolerance, msg=key)

    def test_scores_in_float32(self):
        run = self.by_tokens(self.exact)
        self.check_likelihoods(run, F32_TOLERANCE, F32_TOLERANCE)
        self.assertEqual(run.answers["continuations"], self.reference.answers["continuations"])
        self.check_scores(run, ("acc", "acc_norm", "chrf"), 0)
        self.check_scores(run, ("word_perplexity", "byte_perplexity", "bits_per_byte"), 1e-5)

    def test_scores_as_served(self):
        run = self.by_tokens(self.served)
        self.check_likelihoods(run, *BF16_TOLERANCES)
        pairs = list(zip(run.answers["continuations"], self.reference.answers["continuations"],
                         strict=True))
        self.assertEqual(len(pairs), DOCUMENTS)
        changed = [pair for pair in pairs if pair[0] != pair[1]]
        self.assertLessEqual(len(changed), BF16_TEXTS_CHANGED_MAX, changed)
        self.check_scores(run, ("acc", "acc_norm"), 0)
        self.check_scores(run, ("word_perplexity", "byte_perplexity", "bits_per_byte", "chrf"), 5e-3)

    def test_tokenizer_of_the_server(self):
        """The harness finds /tokenizer_info and asks the server for tokens. No number changes."""
        few = ("--limit", "8")
        # The harness takes a BOS with the id 0 for none.
        by_server = self.over(self.served, *few, custom_prefix_token_id=0, max_length=1024)
        self.assertIn("Using remote tokenizer", by_server.output)
        by_folder = self.over(self.served, *few, tokenizer=MODEL, max_length=1024,
                              tokenizer_backend="huggingface")
        self.assertNotIn("Using remote tokenizer", by_folder.output)
        self.assertEqual([len(by_server.answers[task]) for task in TASKS], [8, 8, 8])
        self.assertEqual(by_server.answers, by_folder.answers)

    def test_chat(self):
        tasks = ("continuations",)
        few = ("--apply_chat_template", "--limit", "12")
        wanted = self.with_transformers(*few, tasks=tasks)
        run = self.over(self.exact, *few, model="local-chat-completions", tasks=tasks)
        self.assertEqual(len(wanted.answers["continuations"]), 12)
        self.assertNotEqual(wanted.answers["continuations"],
                            self.reference.answers["continuations"][:12])
        self.assertEqual(run.answers, wanted.answers)
        self.assertEqual(run.scores, wanted.scores)

    def test_unknown_model(self):
        run = Run(self.folder, "local-completions", {
            "model": "other", "base_url": f"{self.served.url}/v1/completions", "max_retries": 1,
            "tokenizer": MODEL, "tokenizer_backend": "huggingface"}, tasks=("endings",))
        self.assertEqual(run.status, 1)
        self.assertIn("404 Client Error", run.output)
        self.assertIn("The model 'other' is not served here", run.output)
        self.assertEqual(run.scores, {})


if __name__ == "__main__":
    unittest.main()
