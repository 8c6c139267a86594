"""The LM Evaluation Harness, with its model `local-completions`: a small task, and log-likelihoods that
must be those of `transformers`, which computed the goldens."""
import json
import os
import pathlib
import shutil
import tempfile
import unittest

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from server import MODEL, ClientTest, Server

GOLDENS = pathlib.Path(os.environ["MILLRACE_GOLDENS"])
TOLERANCE = 5e-4  # per token; see tests/goldens/README.md
TOWNS = [
    {"question": "And it came to", "choices": ["pass", "Oslo", "the sea of seas"]},
    {"question": "In the beginning God", "choices": ["was a cat", "created the heaven", "x"]},
    {"question": "The sun", "choices": ["and the moon", "zzz", "is 12"]},
]
TASK = """
task: towns
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""


def client(server, tokenizer, model="demo"):
    return get_model("local-completions").create_from_arg_obj(
        {"base_url": f"{server.url}/v1/completions", "model": model, "tokenizer": str(tokenizer),
         "max_retries": 1, "num_concurrent": 2})


def ask(lm, kind, *pairs):
    return getattr(lm, kind)([Instance(kind, {}, pair, i) for i, pair in enumerate(pairs)])


def with_words(folder):
    """A copy of a golden's model whose token i is the word "wi", so that texts say which ids are meant."""
    shutil.copytree(GOLDENS / "llama-gqa", folder)
    vocabulary = {f"w{i}": i for i in range(json.loads(
        (folder / "config.json").read_text())["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [],
         "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w2"}))
    return folder


def words(ids):
    return " ".join(f"w{i}" for i in ids)


class LmEvalTest(ClientTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def own_log_likelihood(self, context, continuation):
        """Of the continuation's tokens, asked for without the client."""
        ids = [self.post("tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
               for text in (context, context + continuation)]
        _, reply = self.post("v1/completions", {"prompt": ids[1], "max_tokens": 1, "echo": True,
                                                "logprobs": 1, "temperature": 0})
        logprobs = reply["choices"][0]["logprobs"]["token_logprobs"]
        return sum(logprobs[len(ids[0]):len(ids[1])])

    def test_a_task(self):
        scores = [[self.own_log_likelihood(town["question"], " " + choice)
                   for choice in town["choices"]] for town in TOWNS]
        best = [row.index(max(row)) for row in scores]
        answers = best[:2] + [(best[2] + 1) % 3]  # the last one is wrong
        data = self.folder / "towns.jsonl"
        data.write_text("".join(json.dumps({**town, "answer": answer}) + "\n"
                                for town, answer in zip(TOWNS, answers)))
        (self.folder / "towns.yaml").write_text(TASK.format(file=data))
        results = lm_eval.simple_evaluate(
            model=client(self.server, MODEL), tasks=["towns"], bootstrap_iters=0,
            task_manager=TaskManager(include_path=str(self.folder), include_defaults=False))
        self.assertAlmostEqual(results["results"]["towns"]["acc,none"], 2 / 3)
        for sample in results["samples"]["towns"]:
            got = [float(answer[0][0]) for answer in sample["resps"]]
            for one, wanted in zip(got, scores[sample["doc_id"]]):
                self.assertAlmostEqual(one, wanted, places=5)

    def test_generation(self):
        asked = {"prompt": "And it came to pass", "max_tokens": 12, "temperature": 0}
        wanted = self.post("v1/completions", asked)[1]["choices"][0]["text"]
        got = ask(client(self.server, MODEL), "generate_until",
                  (asked["prompt"], {"max_gen_toks": 12, "until": ["zzzz"]}))
        self.assertEqual(got, [wanted])

    def test_scores_are_those_of_transformers(self):
        server = Server(model=with_words(self.folder / "model"))
        self.addCleanup(server.kill)
        golden = json.loads((GOLDENS / "llama-gqa" / "golden.json").read_text())
        pairs = [(words(prompt["tokens"]), " " + words(prompt["greedy"]))
                 for prompt in golden["prompts"]]
        got = ask(client(server, self.folder / "model"), "loglikelihood", *pairs)
        self.assertGreater(len(got), 2)
        for (score, is_greedy), prompt in zip(got, golden["prompts"]):
            self.assertTrue(is_greedy)
            self.assertAlmostEqual(score, sum(prompt["greedy_logprobs"]),
                                   delta=TOLERANCE * len(prompt["greedy"]))
        # A continuation that is not the likeliest one: the last token is another.
        tokens = golden["prompts"][0]["greedy"][:-1] + [0]
        (score, is_greedy), = ask(client(server, self.folder / "model"), "loglikelihood",
                                  (pairs[0][0], " " + words(tokens)))
        self.assertFalse(is_greedy)
        self.assertLess(score, sum(golden["prompts"][0]["greedy_logprobs"]))

    def test_an_unknown_model(self):
        with self.assertRaisesRegex(Exception, "404"):
            ask(client(self.server, MODEL, "other"), "loglikelihood", ("And it", " came"))


if __name__ == "__main__":
    unittest.main()
