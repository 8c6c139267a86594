#!/usr/bin/env python3
"""No option is accepted and ignored. The list of options comes from `--help`: each option of
`serve`, `serve --cluster`, `up` and `worker` has a row in options_table.py. It is set to something
that is not its default, and its effect is seen from outside, or the command refuses it with a
sentence that says what to do.

Usage: options_test.py PROGRAM [unittest arguments]
"""
import os
import re
import select
import signal
import socket
import tempfile
import time
import unittest

import options_effects as effects
from options_harness import Running, count_syncs, options_in_help, run
from options_table import (BESIDE, BESIDE_OF, BRANCHING, ELSEWHERE, GROUPS, KINDS, OF_CLUSTERS,
                           OF_THE_HUB, REFUSED, WORKER_ALONE, WORKERS, Files, option_of, words_of, workers)

from harness.cases import DEMO as MODEL
from harness.cases import ROOT, FolderTest, take_paths
from harness.ports import free_port
from harness.processes import Process
from harness.waiting import wait_for

PROGRAM, = take_paths(1)


class EveryOption(unittest.TestCase):
    """The rows and the program's own list are the same, and no row sets the default."""

    def check_rows(self, command, kind, rows, elsewhere):
        shown = options_in_help(PROGRAM, command)
        seen = {option_of(name) for name in rows} | set(elsewhere)
        self.assertEqual(sorted(shown.keys() - seen), [],
                         f"these of `{kind}` need a row in tests/cli/options_table.py")
        self.assertEqual(sorted(seen - shown.keys()), [], f"`{kind}` has no such options")
        for name, row in rows.items():
            given = " ".join(map(str, row)) or "true"
            self.assertNotEqual(given, shown[option_of(name)], f"{name}: that is the default")

    def test_servers(self):
        for kind in KINDS:
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                rows = {name: (words,) for name, (words, _) in REFUSED[kind].items()}
                for group in GROUPS:
                    made = GROUPS[group](kind, Files(PROGRAM, folder))
                    self.assertEqual(rows.keys() & made.keys(), set(), "two rows of one option")
                    rows |= {name: row.values for name, row in made.items()}
                self.check_rows(kind.split()[0], kind, rows, ELSEWHERE[kind])

    def test_worker(self):
        with tempfile.TemporaryDirectory() as folder:
            rows = {name: row.values for made in workers(Files(PROGRAM, folder))
                    for name, row in made.items()}
        self.check_rows("worker", "worker", rows | WORKER_ALONE, {"--help"} | OF_THE_HUB)


class BenchServe(unittest.TestCase):
    def test_the_flags_that_the_page_lists_are_there(self):
        page = (ROOT / "docs" / "cli.md").read_text()
        table = page[page.index("exist\nhere, with the same"):page.index("The others are not options")]
        listed = set(re.findall(r"`(--[a-z-]+)`", table))
        self.assertEqual(len(listed), 30)
        done = run(PROGRAM, "bench", "serve", "--help")[1]
        self.assertEqual([name for name in listed if not re.search(rf"{name}[ ,\n]", done)], [])


class Refusals(unittest.TestCase):
    def test_say_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            at = Files(PROGRAM, folder)
            lead = ["--cluster", f"sqlite:{folder}/state", "--listen", "127.0.0.1:0", "--token",
                    at.token]
            for kind, refused in REFUSED.items():
                beside = lead if kind == "serve --cluster" else []
                for option, (value, words) in refused.items():
                    with self.subTest(f"{kind} {option}"):
                        status, text = run(PROGRAM, kind.split()[0], MODEL, *beside,
                                           f"{option}={value}")
                        self.assertEqual((status, text.count("\n")), (2, 1), text)
                        self.assertIn(words, text)
                        self.assertIn(option, text)

    def test_what_goes_with_something_else(self):
        for words, sentence in (
                ("up --journal-sync always", "give --resume-grace SECONDS"),
                ("up --journal-sync always --resume-grace 5", "give --journal DIR"),
                ("up --journal here", "give --resume-grace"),
                ("up --plan plan.yaml --pipeline-parallel-size 1",
                 "leave out --pipeline-parallel-size"),
                ("up --plan plan.yaml --tensor-parallel-size 2",
                 "leave out --tensor-parallel-size"),
                ("up --plan plan.yaml --prefill-workers 1", "leave out --prefill-workers"),
                ("up --plan plan.yaml --data-parallel-size 2", "leave out --data-parallel-size"),
                ("up --prefill-workers 1", "needs --decode-workers: give both"),
                ("up --prefill-workers 1 --decode-workers 1 --data-parallel-size 2",
                 "leave it out with --prefill-workers"),
                ("serve --cluster sqlite:s --listen 127.0.0.1:0 --token t --tls-dir . --insecure",
                 "leave one out"),
                ("serve --cluster sqlite:s --listen 127.0.0.1:0 --etcd-tls-dir .",
                 "--etcd-tls-dir is for a --cluster etcd://"),
                ("serve --preemption-mode recompute --swap-space 1", "leave out --swap-space"),
                ("serve --config none.yaml", "no such file")):
            with self.subTest(words):
                command, *rest = words.split()
                status, text = run(PROGRAM, command, MODEL, *rest)
                self.assertEqual((status, text.count("\n")), (2, 1), text)
                self.assertIn(sentence, text)

    def test_dispatch_goes_with_whole_pipelines(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = Files(PROGRAM, folder).write("plan.yaml", BRANCHING)
            status, text = run(PROGRAM, "up", MODEL, "--port", "0", "--plan", plan, "--dispatch",
                               "random")
            self.assertEqual(status, 1, text)
            self.assertIn("the plan's stages branch", text)
            self.assertIn("leave out --dispatch", text)

    def test_help_is_printed(self):
        for command in ("serve", "up", "worker"):
            status, text = run(PROGRAM, command, "--help")
            self.assertEqual(status, 0)
            self.assertIn(f"Usage: millrace {command} MODEL", text)


class Effects(FolderTest):
    """Each group of each kind of server is one start."""

    def setUp(self):
        super().setUp()
        self.at = Files(PROGRAM, self.folder)

    def start(self, kind, group, rows):
        words = words_of(rows)
        words += [self.at.folder / w if w == "steps.jsonl" else w for w in BESIDE.get(group, [])]
        words += BESIDE_OF.get((kind, group), [])
        given = rows.keys() | set(words)
        if "MODEL" not in given:
            words = [MODEL, *words]
        if kind == "serve --cluster" and "--cluster" not in given:
            words += ["--cluster", f"sqlite:{self.at.folder}/state", "--listen", self.at.joins,
                      "--token", self.at.token]
        if "--port" not in given:
            words += ["--port", "0"]
        environment = {}
        if "--allowed-origins" not in given:
            environment["MILLRACE_ALLOWED_ORIGINS"] = "https://env.example"
        if "--journal-sync" in given:
            environment |= count_syncs(self.at.folder)
        server = Running(PROGRAM, kind, self.at.folder, words, environment)
        self.addCleanup(server.end)
        if "--api-key" in given:
            server.key = rows["--api-key"].values[0]
        if kind == "serve --cluster":
            self.add_workers(server, *WORKERS[group])
        server.wait_until_ready()
        return server

    def add_workers(self, server, count, words):
        secure = (self.at.folder / "tls").exists()
        server.joins, server.model = self.at.joins, MODEL
        server.trust = ["--tls-dir", self.at.tls / "worker"] if secure else []
        for i in range(count):
            server.joined[f"w-{i}"] = Process(
                PROGRAM, "worker", MODEL, "--join", self.at.joins, "--token", self.at.token,
                "--name", f"w-{i}", "--threads", "1", *server.trust, *words)

    def check_group(self, kind, group):
        rows = GROUPS[group](kind, self.at)
        server = self.start(kind, group, rows)
        if "--allowed-origins" not in rows:
            with self.subTest(f"{kind}: the environment"):
                effects.origins(server, "https://env.example")
        for option, row in sorted(rows.items(), key=lambda item: item[1].last):
            with self.subTest(f"{kind} {option}"):
                row.check(server, *(row.values or (None,)))

    def test_the_control_port_wants_a_permission_for_plain_text(self):
        """--insecure; the address is this machine's, written so that nothing can tell."""
        words = ["serve", MODEL, "--cluster", f"sqlite:{self.at.folder}/state", "--listen",
                 f"0x7f.1:{free_port()}", "--token", self.at.token, "--port", "0"]
        status, text = run(PROGRAM, *words)
        self.assertEqual(status, 1)
        self.assertIn("plain text is not allowed", text)
        server = Process(PROGRAM, *words, "--insecure")
        self.addCleanup(server.stop)
        server.wait_for("Serving")

    def test_certificates_for_etcd(self):
        """--etcd-tls-dir: what comes first at etcd's port is TLS."""
        for secure in (False, True):
            with socket.create_server(("127.0.0.1", 0)) as etcd:
                words = ["serve", MODEL, "--cluster", f"etcd://127.0.0.1:{etcd.getsockname()[1]}",
                         "--listen", "127.0.0.1:0", "--token", self.at.token, "--port", "0"]
                words += ["--etcd-tls-dir", self.at.tls / "controller"] if secure else []
                server = Process(PROGRAM, *words)
                self.addCleanup(server.stop)
                wait_for(lambda: select.select([etcd], [], [], 0)[0] or
                           server.process.poll() is not None, "it calls etcd")
                if server.said("no etcd client"):
                    self.skipTest("a build without etcd")
                with etcd.accept()[0] as connection:
                    self.assertEqual(connection.recv(3), b"\x16\x03\x01" if secure else b"PRI")


class Worker(FolderTest):
    def setUp(self):
        super().setUp()
        self.at = Files(PROGRAM, self.folder)

    def controller(self, *words, listen=None):
        server = Running(PROGRAM, "serve --cluster", self.at.folder,
                         [MODEL, "--cluster", f"sqlite:{self.at.folder}/state", "--listen",
                          listen or self.at.joins, "--token", self.at.token, "--port", "0", *words])
        self.addCleanup(server.end)
        return server

    def worker(self, *words):
        cache = str(self.at.folder / "cache-of-workers")
        process = Process(PROGRAM, "worker", *words,
                          env=os.environ | {"NO_COLOR": "1", "XDG_CACHE_HOME": cache})
        self.addCleanup(process.stop)
        return process

    def test_effects(self):
        server = self.controller("--pipeline-parallel-size", "2", "--tls-dir",
                                 self.at.tls / "controller")
        first, second = workers(self.at)
        begin = words_of(first)
        more = words_of(second)
        processes = {
            "first": self.worker(*begin),
            "from-file": self.worker(self.at.folder / "nothing" / "demo", "--join", self.at.joins,
                                     "--token", self.at.token, "--tls-dir", self.at.tls / "worker",
                                     *more)}
        server.wait_until_ready()
        self.assertEqual(len(server.complete()["choices"]), 1)
        self.assertFalse((self.at.folder / "nothing" / "demo" / "config.json").exists())
        shown = {worker["name"]: worker for worker in server.status()["workers"]}
        self.assertEqual(shown.keys(), processes.keys())
        for (name, process), rows in zip(processes.items(), (first, second)):
            process.shown = shown[name]
            for option, row in rows.items():
                with self.subTest(option):
                    row.check(process, *row.values)

    def test_a_worker_that_prepares_for_too_little_gets_no_layers(self):
        """--max-model-len"""
        server = self.controller()
        self.worker(MODEL, "--join", self.at.joins, "--token", self.at.token, "--name", "short",
                    "--max-model-len", *WORKER_ALONE["--max-model-len"])
        note = wait_for(lambda: [w["note"] for w in server.status()["workers"] if w["note"]],
                          "it is refused")[0]
        self.assertIn("is prepared for 100 tokens, but the controller serves sequences of 1024", note)
        self.worker(MODEL, "--join", self.at.joins, "--token", self.at.token, "--name", "long")
        server.wait_until_ready()

    def test_a_change_of_plan_beyond_the_bound_of_a_worker_is_given_up(self):
        """--weights-extra"""
        server = self.controller("--pipeline-parallel-size", "2")

        def worker(name, *words):
            self.worker(MODEL, "--join", self.at.joins, "--token", self.at.token, "--name", name,
                        *words)

        worker("narrow", "--weights-extra", *WORKER_ALONE["--weights-extra"])
        server.wait_until_ready()
        worker("second")
        given_up = wait_for(lambda: server.status().get("given_up"), "the layout is given up")
        self.assertRegex(given_up["reason"], "worker narrow cannot load layers .* needs .* but only "
                                             r"1000 bytes is available \(--weights-extra\)")
        self.assertEqual(len(server.complete()["choices"]), 1)

    def test_notices_of_its_machines_end(self):
        """--notice-source, --notice-endpoint, --grace"""
        server = self.controller()
        with socket.create_server(("127.0.0.1", 0)) as metadata:
            port = metadata.getsockname()[1]
            worker = self.worker(MODEL, "--join", self.at.joins, "--token", self.at.token,
                                 "--notice-source", *WORKER_ALONE["--notice-source"],
                                 "--notice-endpoint", f"http://127.0.0.1:{port}",
                                 "--grace", *WORKER_ALONE["--grace"])
            asking, _ = metadata.accept()
            with asking:
                self.assertRegex(asking.recv(100), rb"PUT /latest/api/token")
        server.wait_until_ready()
        self.worker(MODEL, "--join", self.at.joins, "--token", self.at.token, "--name", "spare")
        wait_for(lambda: len(server.status()["workers"]) == 2, "a spare joins")
        worker.send_signal(signal.SIGTERM)
        worker.wait_for("signal: terminate, this machine goes away in 19 s")
        self.assertEqual(worker.process.wait(60), 0)

    def test_a_profile_is_measured_once_and_kept(self):
        """--profile-cache, --measure-profile"""
        server = self.controller()
        cache, other = self.at.folder / "cache", self.at.folder / "other"

        def worker(name, *words):
            return self.worker(MODEL, "--join", self.at.joins, "--token", self.at.token, "--name",
                               name, *words)

        def rates():
            return {w["name"]: w["decode_tokens_per_s"] for w in server.status()["workers"]
                    if "decode_tokens_per_s" in w}

        worker("measures", "--measure-profile", "--profile-cache", cache)
        measured = wait_for(rates, "a profile is measured")
        self.assertEqual(measured.keys(), {"measures"})
        self.assertEqual(len(list(cache.glob("profile-*.json"))), 1)
        self.assertFalse((cache / "scratch").exists())
        worker("empty", "--no-measure-profile", "--profile-cache", other).wait_for("joining")
        worker("reads", "--no-measure-profile", "--profile-cache", cache)
        both = wait_for(lambda: len(rates()) == 2 and rates(), "the kept one is used")
        self.assertEqual(both, measured | {"reads": measured["measures"]})
        time.sleep(4)  # longer than a worker waits before it measures
        self.assertEqual(rates(), both)
        self.assertFalse(other.exists())

    def test_weights_are_read_once(self):
        """--weight-cache: kept by the first start, used by the next; what is damaged is read again."""
        fingerprints, said = [], []

        def start(*words):
            server = Running(PROGRAM, "serve", self.at.folder, [MODEL, "--port", "0", *words])
            self.addCleanup(server.end)
            server.wait_until_ready()
            fingerprints.append(server.complete()["system_fingerprint"])
            said.append(server.output)
            server.stop()

        kept = self.at.folder / "cache" / "millrace" / "weights"
        start("--no-weight-cache")
        self.assertFalse(kept.exists())
        start("--weight-cache")
        file, = kept.glob("digests-*")
        start("--weight-cache")
        whole = file.read_bytes()
        file.write_bytes(b"x" + whole[1:])
        start("--weight-cache")
        self.assertEqual(file.read_bytes(), whole)
        self.assertEqual(len(set(fingerprints)), 1)
        for text in said[:3]:
            self.assertNotIn("are read again", text)
        self.assertIn("it is damaged; the weights are read again", said[3])

    def test_unlike_instruction_sets_share_a_request(self):
        """--cpu-features: layers 0-1 with AVX2, layers 2-3 with the best that there is, and the
        same bits as one process with either."""
        asked = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.9, "seed": 5, "logprobs": 3}

        def answer(server):
            reply = server.complete("The harbour lay still, and", **asked)
            self.assertRegex(reply["system_fingerprint"], r"\Afp_[0-9a-f]{16}_[a-z0-9-]+\Z")
            choice = reply["choices"][0]
            return choice["text"], choice["logprobs"], reply["system_fingerprint"]

        def alone(*words):
            server = Running(PROGRAM, "serve", self.at.folder, [MODEL, "--port", "0", *words])
            self.addCleanup(server.end)
            server.wait_until_ready()
            return answer(server)

        server = self.controller("--pipeline-parallel-size", "2")
        for name, words in (("best", []), ("avx2", ["--cpu-features", "avx2"])):
            self.worker(MODEL, "--join", self.at.joins, "--token", self.at.token, "--name", name,
                        *words)
        server.wait_until_ready()
        workers_shown = server.status()["workers"]
        self.assertEqual([bool(worker["layers"]) for worker in workers_shown], [True, True])
        self.assertIn("cpu avx2", " ".join(worker["device"] for worker in workers_shown))
        shared = answer(server)
        self.assertEqual(len(shared[1]["tokens"]), 40)
        self.assertEqual(shared, alone())
        self.assertEqual(shared, alone("--cpu-features", "avx2"))

    def test_plain_text_wants_a_permission(self):
        """--insecure; the address is this machine's, written so that nothing can tell."""
        self.controller()
        words = [MODEL, "--join", self.at.joins, "--token", self.at.token, "--listen",
                 f"0x7f.1:{free_port()}"]
        status, text = run(PROGRAM, "worker", *words)
        self.assertEqual(status, 1)
        self.assertIn("plain text is not allowed", text)
        self.worker(*words, "--insecure").wait_for("layers 0-3 are loaded")

    def test_listens_on_ipv6(self):
        if not socket.has_ipv6:
            self.skipTest("needs IPv6")
        self.controller()
        self.worker(MODEL, "--join", self.at.joins, "--token", self.at.token, "--listen",
                    "[::1]:0").wait_for("layers 0-3 are loaded")


for _kind in KINDS:
    for _group in GROUPS:
        if _kind == "serve" and _group in OF_CLUSTERS:
            continue
        setattr(Effects, f"test_{_group}_of_{_kind.replace(' --', '_')}",
                lambda self, k=_kind, g=_group: self.check_group(k, g))


if __name__ == "__main__":
    unittest.main(verbosity=2)
