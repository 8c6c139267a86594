#!/usr/bin/env python3
"""Models from a Hugging Face hub: a local server imitates its routes and its faults, and the real
program downloads from it into the hub's cache.

Usage: hub.py PROGRAM MODEL [unittest arguments]
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import ROOT, FolderTest, take_paths  # noqa: E402
from harness.fakes import make_certificate  # noqa: E402
from harness.processes import make_token  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

from fake_hub import FakeHub, files_of, git_blob, in_shards, sha256  # noqa: E402

PROGRAM, MODEL = take_paths(2)
LIMIT_S = 120
QUESTION = "Tell me about the sea.\n"
WEIGHTS = "model.safetensors"
NAME = "org/demo"
UNUSED = {"pytorch_model.bin": b"pickle", "model.gguf": b"gguf", "README.md": b"# A model",
          "onnx.onnx": b"onnx"}


class HubTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.cache = self.folder / "home" / "hub"
        self.hub = self.start_hub()
        self.files = files_of(MODEL) | UNUSED
        self.hub.repositories[NAME] = {"main": self.files}

    def start_hub(self, certificate=None):
        hub = FakeHub(certificate)
        self.addCleanup(hub.close)
        return hub

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("HF_", "MILLRACE_", "SSL_")) and
                not name.endswith("_CA_BUNDLE") and "proxy" not in name.lower()}
        return kept | {"HF_HOME": str(self.folder / "home"), "HF_ENDPOINT": self.hub.url,
                       "HF_HUB_DOWNLOAD_TIMEOUT": "30"} | more

    @staticmethod
    def read_until(stream, words):
        """What it says up to the line that has them."""
        said = ""
        while words not in said:
            line = stream.readline()
            if not line:
                raise AssertionError(f"it left: {said}")
            said += line
        return said

    def start(self, *words, command="chat", name=NAME, **environment):
        words = ["--temperature", "0", "--max-tokens", "8", *words] if command == "chat" else words
        return subprocess.Popen([PROGRAM, command, name, *words], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment(**environment))

    def run_program(self, *words, status=0, **more):
        process = self.start(*words, **more)
        out, err = process.communicate(QUESTION, timeout=LIMIT_S)
        self.assertEqual(process.returncode, status, err)
        self.assertNotIn("secret-of-", err, "a signed address was shown")
        return out, err

    def refused(self, *words, **more):
        """The last line of a command that fails."""
        return self.run_program(*words, status=1, **more)[1].splitlines()[-1]

    def repository(self, name=NAME):
        return self.cache / ("models--" + name.replace("/", "--"))

    def blobs(self, name=NAME):
        return sorted(path.name for path in (self.repository(name) / "blobs").iterdir())

    def partial(self):
        return self.repository() / "blobs" / (sha256(self.files[WEIGHTS]) + ".incomplete")

    def asked_ranges(self):
        return [request.headers.get("range")
                for request in self.hub.downloads(WEIGHTS, "storage")]

    def assert_whole(self, name=NAME, revision="main"):
        commit = (self.repository(name) / "refs" / revision).read_text()
        snapshot = self.repository(name) / "snapshots" / commit
        self.assertEqual((snapshot / WEIGHTS).read_bytes(),
                         self.hub.repositories[name][revision][WEIGHTS])
        self.assertEqual([b for b in self.blobs(name) if b.endswith(".incomplete")], [])


class Downloads(HubTest):
    def test_a_model_is_downloaded_once_in_the_hubs_own_layout(self):
        here = self.run_program(name=MODEL)[0]
        self.assertEqual(self.hub.requests, [])
        out, err = self.run_program()
        self.assertEqual(out, here)
        self.assertRegex(err, r"Downloading org/demo, commit [0-9a-f]{12}: 7.63 MiB of weights")
        self.assertRegex(err, r"Downloading 100% 7.63 MiB of 7.63 MiB")
        commit = self.hub.commit(NAME, "main")
        self.assertEqual((self.repository() / "refs" / "main").read_text(), commit)
        snapshot = self.repository() / "snapshots" / commit
        wanted = ["config.json", "generation_config.json", WEIGHTS, "special_tokens_map.json",
                  "tokenizer.json", "tokenizer_config.json"]
        self.assertEqual(sorted(path.name for path in snapshot.iterdir()), sorted(wanted))
        for name in wanted:
            digest = sha256 if name == WEIGHTS else git_blob
            self.assertEqual(os.readlink(snapshot / name),
                             "../../blobs/" + digest(self.files[name]))
            self.assertEqual((snapshot / name).read_bytes(), self.files[name])
        self.assertEqual(len(self.blobs()), len(wanted))
        for name in UNUSED:
            self.assertEqual(self.hub.downloads(name), [])
        self.hub.close()
        self.assertEqual(self.run_program()[0], here, "the cache has it whole")

    def test_shards_and_what_one_of_them_lacks(self):
        here = self.run_program(name=MODEL)[0]
        self.files = in_shards(self.files)
        self.hub.repositories[NAME] = {"main": self.files}
        self.assertEqual(self.run_program()[0], here)
        shard = self.repository() / "blobs" / sha256(self.files["model-00002-of-00002.safetensors"])
        shard.unlink()
        self.hub.requests.clear()
        self.assertEqual(self.run_program()[0], here)
        self.assertEqual(len(self.hub.downloads("model-00002-of-00002.safetensors", "storage")), 1)
        self.assertEqual(self.hub.downloads("model-00001-of-00002.safetensors"), [])

    def test_revisions(self):
        config = json.loads(self.files["config.json"])
        older = self.files | {"config.json": json.dumps(config | {"max_position_embeddings": 512})
                              .encode()}
        self.hub.repositories[NAME] = {"main": self.files, "v1": older, "refs/pr/1": older}
        self.run_program("--revision", "v1")
        self.assert_whole(revision="v1")
        self.assertFalse((self.repository() / "refs" / "main").exists())
        self.run_program("--revision", "refs/pr/1")
        self.assertEqual(len(self.hub.downloads(WEIGHTS, "storage")), 1, "the blob is shared")
        self.run_program("--revision", self.hub.commit(NAME, "main"))
        self.assertEqual(sorted(path.name for path in (self.repository() / "refs").rglob("*")),
                         ["1", "pr", "refs", "v1"], "a commit needs no reference")
        self.assertEqual(len(list((self.repository() / "snapshots").iterdir())), 2)
        self.assertIn("check --revision", self.refused("--revision", "none"))
        self.assertIn("leave out --revision", self.refused("--revision", "v1", name=MODEL))

    def test_a_server_loads_while_its_port_is_open(self):
        self.hub.troubles[WEIGHTS] = [("pace", 0.01)]
        process = self.start("--port", "0", command="serve")
        threading.Thread(target=process.stdin.close).start()
        self.assertIn("listening on", self.read_until(process.stderr, "Downloading"))
        threading.Thread(target=process.stderr.read, daemon=True).start()
        self.assertIn(f"Serving {NAME} on", self.read_until(process.stdout, "curl"))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 0)
        process.stdout.close()
        self.assert_whole()

    def test_workers_of_up_take_the_download_of_their_parent(self):
        config = json.loads(self.files["config.json"]) | {"max_position_embeddings": 512}
        self.hub.repositories[NAME]["v1"] = self.files | {
            "config.json": json.dumps(config).encode()}
        process = self.start("--port", "0", "--workers", "2", "--revision", "v1", command="up")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        self.assertIn("512 tokens", self.read_until(process.stdout, "curl"))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(LIMIT_S), 0)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        lists = [r for r in self.hub.requests if "/api/" in r.path]
        self.assertEqual((len(lists), len(self.hub.downloads(WEIGHTS, "storage"))), (1, 1))

    def test_a_list_without_digests(self):
        self.hub.digests = False
        self.run_program()
        self.assert_whole()
        self.assertIn(sha256(self.files[WEIGHTS]), self.blobs())

    def test_the_certificate_of_an_authority_of_ones_own(self):
        cert, key = make_certificate(self.folder)
        self.hub = self.start_hub((cert, key))
        self.hub.repositories[NAME] = {"main": self.files}
        self.assertIn("cannot establish TLS", self.refused())
        self.run_program(SSL_CERT_FILE=str(cert))
        self.assert_whole()
        self.assertIn("CURL_CA_BUNDLE: cannot read",
                      self.refused(name="org/other", CURL_CA_BUNDLE=str(self.folder / "none")))


class Page(HubTest):
    """The commands of docs/cli.md."""

    def test_its_commands(self):
        page = (ROOT / "docs" / "cli.md").read_text()
        section = page[page.index("\n## MODEL"):page.index("\n## serve")]
        lines = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1].splitlines()
        self.assertEqual(len(lines), 3)
        self.hub.repositories = {"org/name": {"main": self.files, "v1.0": self.files}}
        for line in lines:
            program, command, name, *words = line.split()
            self.assertEqual(program, "millrace")
            self.run_program(*words, command=command, name=name)
        self.assert_whole("org/name", "main")
        self.assert_whole("org/name", "v1.0")


class Offline(HubTest):
    def test_says_what_is_missing(self):
        for words, environment in ((["--offline"], {}), ([], {"HF_HUB_OFFLINE": "1"})):
            text = self.refused(*words, **environment)
            self.assertIn("no model at org/demo or", text)
            self.assertIn("leave out --offline (HF_HUB_OFFLINE)", text)
        self.assertEqual(self.hub.requests, [])
        self.run_program()
        (self.repository() / "blobs" / sha256(self.files[WEIGHTS])).unlink()
        text = self.refused("--offline")
        self.assertIn("lacks model.safetensors", text)

    def test_uses_what_is_there(self):
        self.run_program()
        self.hub.requests.clear()
        self.run_program("--offline")
        self.run_program(HF_HUB_OFFLINE="true")
        self.assertEqual(self.hub.requests, [])

    def test_a_worker_takes_weights_from_others_instead(self):
        """--offline of a worker, and --weights peer, which fetches nothing from the hub either."""
        join = ["--join", "127.0.0.1:9", "--token", make_token(PROGRAM, self.folder), "--notice-source", "none",
                "--no-measure-profile"]
        self.assertIn("no model at org/demo", self.refused("--offline", *join, command="worker"))
        process = self.start("--weights", "peer", *join, command="worker")
        said = self.read_until(process.stderr, "joining")
        process.kill()
        process.communicate()
        self.assertIn("its weights will come from other workers", said)
        self.assertEqual(self.hub.requests, [])


class BrokenDownloads(HubTest):
    def test_a_broken_connection_is_continued(self):
        self.hub.troubles[WEIGHTS] = [("cut", 3_000_000), ("cut", 2_000_000)]
        _, err = self.run_program("--log-level", "info")
        self.assert_whole()
        ranges = self.asked_ranges()
        self.assertEqual((len(ranges), ranges[0]), (3, None))
        self.assertRegex(ranges[1], r"bytes=[1-3]\d{6}-")
        self.assertEqual(err.count("lost the connection"), 2)

    def test_an_answer_that_ends_early_is_continued(self):
        self.hub.troubles[WEIGHTS] = [("short", 2_000_000)]
        self.run_program()
        self.assert_whole()
        self.assertEqual(self.asked_ranges(), [None, "bytes=2000000-"])

    def test_an_interrupted_download_is_continued_by_the_next_command(self):
        for number, end in enumerate((signal.SIGINT, signal.SIGKILL)):
            with self.subTest(end):
                self.hub.troubles[WEIGHTS] = [("pace", 0.05)]
                process = self.start()
                self.wait_for_bytes(process, (2 + number) * 1_000_000)
                process.send_signal(end)
                process.communicate()
                self.assertEqual(process.returncode, 130 if end == signal.SIGINT else -end)
                self.assertFalse((self.repository() / "refs" / "main").exists())
        here = self.partial().stat().st_size
        _, err = self.run_program("--log-level", "info")
        self.assertIn("continues at", err)
        self.assertEqual(self.asked_ranges()[-1], f"bytes={here}-")
        self.assert_whole()

    def test_each_command_can_be_interrupted(self):
        """Those that have a use for signals of their own, while they download."""
        token, prompts = make_token(PROGRAM, self.folder), self.folder / "prompts"
        prompts.write_text("Once\n")
        for command, words, status in (
                ("generate", ["--prompts", prompts, "--out", self.folder / "out.jsonl"], 130),
                ("drill", [], 130), ("serve", ["--port", "0"], 0),
                ("worker", ["--join", "127.0.0.1:9", "--token", token], 130)):
            with self.subTest(command):
                self.hub.troubles[WEIGHTS] = [("slow", 1_000_000)]
                # Each continues what the one before has left.
                before = self.partial().stat().st_size if self.partial().exists() else 0
                process = self.start(*words, command=command, HF_HUB_DOWNLOAD_TIMEOUT="600")
                try:
                    self.wait_for_bytes(process, before + 1)
                    process.send_signal(signal.SIGINT)
                    self.assertEqual(process.wait(60), status)
                finally:
                    process.kill()
                    process.communicate()

    def wait_for_bytes(self, process, count):
        def are_there():
            self.assertIsNone(process.poll())
            return self.partial().exists() and self.partial().stat().st_size >= count
        wait_for(are_there, f"{count} bytes", LIMIT_S, 0.02)

    def leave_partial(self, data):
        self.partial().parent.mkdir(parents=True)
        self.partial().write_bytes(data)

    def test_a_server_that_ignores_ranges(self):
        self.leave_partial(self.files[WEIGHTS][:5000])
        self.hub.troubles[WEIGHTS] = [("whole",)]
        self.run_program()
        self.assert_whole()
        self.assertEqual(self.asked_ranges(), ["bytes=5000-"])

    def test_a_server_that_has_another_file_by_now(self):
        self.leave_partial(self.files[WEIGHTS][:5000])
        self.hub.troubles[WEIGHTS] = [("etag", "0" * 64)]
        self.run_program()
        self.assert_whole()
        self.assertEqual(self.asked_ranges(), ["bytes=5000-", None])

    def test_more_than_the_file_is_begun_anew(self):
        self.leave_partial(self.files[WEIGHTS] + b"x")
        self.run_program()
        self.assert_whole()
        self.assertEqual(self.asked_ranges(), [None])

    def test_a_file_that_is_all_there_is_only_checked(self):
        self.leave_partial(self.files[WEIGHTS])
        self.run_program()
        self.assert_whole()
        self.assertEqual(self.asked_ranges(), [])

    def test_errors_of_a_server_pass(self):
        self.hub.troubles[WEIGHTS] = [("status", 500), ("status", 503, {"Retry-After": "2"})]
        self.hub.troubles["list"] = [("status", 429, {"Retry-After": "1"})]
        begun = time.monotonic()
        self.run_program()
        self.assert_whole()
        self.assertGreater(time.monotonic() - begun, 1 + 1 + 2)

    def test_a_server_that_stays_broken_is_given_up(self):
        self.hub.troubles["list"] = [("status", 502)] * 9
        self.assertIn("the hub answers 502; 3 attempts failed", self.refused())
        self.assertEqual(len(self.hub.requests), 3)
        self.hub.close()
        self.assertIn("cannot reach http://127.0.0.1", self.refused())

    def test_a_storage_that_is_not_reached_is_asked_again(self):
        self.hub.troubles[WEIGHTS] = [("redirect", "http://127.0.0.1:9/model?X-Signature=secret-of-")]
        _, err = self.run_program()
        self.assertIn("cannot reach http://127.0.0.1:9: ", err)
        self.assert_whole()

    def test_a_trickle_is_a_broken_connection(self):
        self.hub.troubles[WEIGHTS] = [("slow", 2_000_000)]
        _, err = self.run_program(HF_HUB_DOWNLOAD_TIMEOUT="2")
        self.assertRegex(err, r"sent less than 1024 bytes/s for 2 s; trying again")
        self.assert_whole()
        self.assertRegex(self.asked_ranges()[1], r"bytes=20000\d\d-")

    def test_other_bytes_are_deleted(self):
        for name in (WEIGHTS, "tokenizer.json"):
            with self.subTest(name):
                self.hub.troubles[name] = [("other",)]
                text = self.refused()
                self.assertIn(f"{NAME}, {name}: the ", text)
                self.assertIn("and the hub says", text)
                self.assertEqual([b for b in self.blobs() if b.endswith(".incomplete")], [])
                self.run_program()
                self.assert_whole()
                for blob in (self.repository() / "blobs").iterdir():
                    blob.unlink()

    def test_two_processes_at_once_share_the_work(self):
        self.hub.troubles[WEIGHTS] = [("pace", 0.02)]
        both = [self.start("--log-level", "info") for _ in range(2)]
        said = [process.communicate(QUESTION, timeout=LIMIT_S) for process in both]
        self.assertEqual([process.returncode for process in both], [0, 0], said)
        self.assertEqual(said[0][0], said[1][0])
        self.assertEqual(len(self.hub.downloads(WEIGHTS, "storage")), 1)
        self.assertIn("another process downloads it", said[0][1] + said[1][1])
        self.assert_whole()


class Refusals(HubTest):
    def test_a_token_goes_to_the_hub_alone(self):
        self.hub.token = "hf_sesame"
        (self.folder / "home").mkdir()
        (self.folder / "home" / "token").write_text("hf_sesame\n")
        _, err = self.run_program("--log-level", "debug")
        self.assertNotIn("sesame", err)
        for request in self.hub.requests:
            self.assertEqual(request.headers.get("authorization"),
                             "Bearer hf_sesame" if request.server == "hub" else None)
        self.assertIn("storage", {request.server for request in self.hub.requests})

    def test_gated_and_unknown_models(self):
        self.hub.token, self.hub.refusal = "hf_sesame", "GatedRepo"
        text = self.refused()
        self.assertIn("org/demo is gated: accept its terms", text)
        self.assertIn("set HF_TOKEN", text)
        self.hub.refusal = "RepoNotFound"
        self.assertIn("check the name, or set HF_TOKEN", self.refused())
        text = self.refused(HF_TOKEN="hf_wrong")
        self.assertIn("does not let the token read", text)
        self.assertNotIn("hf_wrong", text)
        self.hub.token = None
        self.assertIn("the hub has no model org/none: check the name", self.refused(name="org/none"))
        self.assertIn("or ORG/NAME of a model on the Hugging Face hub", self.refused(name="none"))

    def test_redirects(self):
        self.hub.troubles[WEIGHTS] = [("redirect", "http://weights.example/model")]
        self.assertIn("redirects to http://weights.example, which has no TLS", self.refused())
        self.hub.troubles[WEIGHTS] = [("redirect", "file:///etc/passwd")]
        self.assertIn("a URL must start with http", self.refused())
        loop = f"{self.hub.url}/{NAME}/resolve/{self.hub.commit(NAME, 'main')}/{WEIGHTS}"
        self.hub.troubles[WEIGHTS] = [("redirect", loop)] * 20
        self.assertIn("redirects more than 10 times", self.refused())

    def test_models_that_cannot_be_served_are_refused_before_their_weights(self):
        config = json.loads(self.files["config.json"])
        for change, words in (({"architectures": ["WhisperModel"]}, "WhisperModel"),
                              ({"quantization_config": {"quant_method": "gptq"}}, "quantiz"),
                              ({"hidden_size": -1}, "hidden_size")):
            self.hub.repositories[NAME] = {
                "main": self.files | {"config.json": json.dumps(config | change).encode()}}
            self.assertIn(words, self.refused())
        self.hub.repositories[NAME] = {"main": {name: data for name, data in self.files.items()
                                                if name != WEIGHTS}}
        self.assertIn("has its weights as *.bin only", self.refused())
        self.hub.repositories[NAME] = {"main": {"x.txt": b"x"}}
        self.assertIn("has no config.json", self.refused())
        self.assertEqual(self.hub.downloads(WEIGHTS), [])

    def test_lists_that_cannot_be_true(self):
        entry = {"rfilename": "config.json", "size": 2, "blobId": "0" * 40}
        many = {"sha": "a" * 40, "siblings": [{"rfilename": f"f{i}"} for i in range(100_000)]}
        for listing, words in ((b"<html>", "malformed"),
                               (json.dumps(many).encode(), "100000 files, and the limit is 20000"),
                               (b"[" * 20_000_000, "exceeds the limit of 16.0 MiB"),
                               (json.dumps({"sha": "../../x", "siblings": []}).encode(), "no commit"),
                               (json.dumps({"sha": "a" * 40, "siblings": [
                                   entry | {"size": -5}]}).encode(), "size of config.json")):
            self.hub.listing = listing
            self.assertIn(words, self.refused())
        self.assertFalse(self.cache.exists())

    def test_sizes_that_lie(self):
        self.hub.sizes = {WEIGHTS: len(self.files[WEIGHTS]) - 10}
        self.assertIn("the server sends 8004096 bytes, and 8004086 are missing", self.refused())
        self.hub.troubles[WEIGHTS] = [("more",)]
        self.assertIn("sends more than the 8004086 bytes", self.refused())
        self.hub.sizes = {WEIGHTS: 1 << 39}
        self.assertRegex(self.refused(), r"needs 512 GiB more in \S+, and .* is free")
        self.hub.sizes = {"tokenizer.json": 1 << 38}
        self.assertIn("and the limit is 95.4 MiB", self.refused())

    def test_an_index_cannot_name_files_elsewhere(self):
        for shard in ("../../../../x.safetensors", "/etc/passwd", "a\0b", "none.safetensors"):
            files = in_shards(self.files)
            files[WEIGHTS + ".index.json"] = json.dumps({"weight_map": {"a": shard}}).encode()
            self.hub.repositories[NAME] = {"main": files}
            self.assertIn("which the repository does not have", self.refused())

    def test_places_that_cannot_be_written(self):
        text = self.refused(HF_HUB_CACHE="/proc/none")
        self.assertIn("cannot create /proc/none", text)
        self.assertIn("HF_HUB_CACHE", text)
        self.assertIn("has no TLS", self.refused(HF_ENDPOINT="http://hub.example"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
