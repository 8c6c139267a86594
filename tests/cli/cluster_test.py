#!/usr/bin/env python3
"""Runs what a cluster's users touch and what needs no model: secrets, certificates, and the
commands that ask a controller, against one that recites.

Usage: cluster_test.py PROGRAM [unittest arguments]
"""
import json
import os
import pathlib
import re
import socket
import stat
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import processes  # noqa: E402
from harness.cases import FolderTest, take_paths  # noqa: E402
from harness.fakes import FakeServer, send  # noqa: E402

PROGRAM, = take_paths(1)


def run(*args, **more):
    return processes.run(PROGRAM, *args, **more)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


class Token(FolderTest):
    def test_is_random_and_the_owners(self):
        path = self.folder / "cluster.token"
        run("token", "--out", str(path), umask=0)
        self.assertRegex(path.read_text(), r"\A[0-9a-f]{64}\n\Z")
        self.assertEqual(mode(path), 0o600)
        printed = run("token").stdout
        self.assertRegex(printed, r"\A[0-9a-f]{64}\n\Z")
        self.assertNotEqual(printed, path.read_text())

    def test_is_replaced_only_by_force(self):
        path = self.folder / "cluster.token"
        run("token", "--out", str(path))
        first = path.read_text()
        refused = run("token", "--out", str(path), status=1).stderr
        self.assertIn("--force", refused)
        self.assertEqual(path.read_text(), first)
        run("token", "--out", str(path), "--force")
        self.assertNotEqual(path.read_text(), first)


class Certs(FolderTest):
    def openssl(self, *args):
        done = processes.run("openssl", *args, status=None)
        return done.returncode, done.stdout + done.stderr

    def make(self, *more, status=0):
        return run("certs", "--out", str(self.folder / "tls"), "--host", "10.9.0.1", "w-1.example",
                   *more, status=status, umask=0)

    def test_other_tools_accept_them(self):
        self.make()
        tls = self.folder / "tls"
        for role in ("controller", "worker"):
            for purpose in ("sslserver", "sslclient"):
                status, said = self.openssl(
                    "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(tls / "ca.crt"),
                    str(tls / role / "tls.crt"))
                self.assertEqual(status, 0, said)
            _, names = self.openssl("x509", "-in", str(tls / role / "tls.crt"), "-noout", "-ext",
                                    "subjectAltName")
            for host in ("IP Address:10.9.0.1", "DNS:w-1.example", "DNS:localhost",
                         "IP Address:127.0.0.1"):
                self.assertIn(host, names)
            self.assertEqual((tls / role / "ca.crt").read_text(), (tls / "ca.crt").read_text())

    def test_keys_are_the_owners(self):
        self.make()
        keys = sorted(p.relative_to(self.folder) for p in self.folder.rglob("*.key"))
        self.assertEqual([str(k) for k in keys],
                         ["tls/ca.key", "tls/controller/tls.key", "tls/worker/tls.key"])
        for key in keys:
            self.assertEqual(mode(self.folder / key), 0o600)

    def test_force_renews_under_the_same_authority(self):
        self.make()
        tls = self.folder / "tls"
        before = {p: p.read_text() for p in tls.rglob("*.*")}
        refused = self.make(status=1).stderr
        self.assertIn("--force", refused)
        self.assertEqual({p: p.read_text() for p in tls.rglob("*.*")}, before)
        self.make("--force", "--days", "3")
        changed = {str(p.relative_to(tls)) for p in tls.rglob("*.*") if p.read_text() != before[p]}
        self.assertEqual(changed, {"controller/tls.crt", "controller/tls.key", "worker/tls.crt",
                                   "worker/tls.key"})
        status, said = self.openssl("verify", "-CAfile", str(tls / "ca.crt"),
                                    str(tls / "worker" / "tls.crt"))
        self.assertEqual(status, 0, said)
        _, dates = self.openssl("x509", "-in", str(tls / "worker/tls.crt"), "-noout", "-checkend",
                                str(4 * 86400))
        self.assertIn("will expire", dates)

    def test_a_damaged_authority_is_named(self):
        self.make()
        (self.folder / "tls/ca.key").write_text("nothing")
        refused = self.make("--force", status=1).stderr
        self.assertTrue(re.search(r"tls/ca\.crt: contains no PEM private key", refused), refused)


PLAN = """format: 1
model: demo
layers: 12
stages:
  - {stage: 0, nodes: [a], layers: [0, 8]}
  - {stage: 1, nodes: [b], layers: [8, 12]}
"""


def status(epoch=3, changing=False, b_layers=((6, 12),)):
    return 200, {
        "model": "demo", "term": 1, "epoch": epoch, "missing": None, "changing": changing,
        "workers": [
            {"name": "a", "state": "serving", "layers": [[0, 6]], "rank": 0, "ranks": 1,
             "weight_bytes": 6 << 20},
            {"name": "b", "state": "serving", "layers": [list(r) for r in b_layers], "rank": 0,
             "ranks": 1, "weight_bytes": 6 << 20}],
        "stages": [
            {"workers": ["a"], "layers": [[0, 6]], "role": "both", "up": True, "kv_blocks": 512},
            {"workers": ["b"], "layers": [[6, 12]], "role": "both", "up": True, "kv_blocks": 512}],
        "pipelines": [], "requests": 0, "waiting": 0, "moving": 0, "counters": {"joins": 2}}


class Controller(FakeServer):
    """Answers each path from a list, the last answer for ever, and keeps what it was asked. It
    listens on a unix socket, or as --admin-listen does."""

    def __init__(self, answers, unix_path=None):
        self.answers, self.asked = answers, []
        super().__init__(self.recite, unix_path=unix_path)

    def recite(self, handler, body):
        self.asked.append((handler.command, handler.path, handler.headers.get("Authorization"),
                           body.decode()))
        todo = self.answers[handler.path]
        code, answer = todo.pop(0) if len(todo) > 1 else todo[0]
        send(handler, code, answer if isinstance(answer, str) else json.dumps(answer))


KEY = ("--admin-key", "sesame")


class Admin(FolderTest):
    def controller(self, unix_path=None, **answers):
        made = Controller({f"/cluster/{k}": v for k, v in answers.items()}, unix_path)
        self.addCleanup(made.close)
        return made

    def environment(self):
        """In which sockets are in the folder of this test."""
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}

    def unix_controller(self, port, **answers):
        folder = self.folder / "millrace"
        folder.mkdir(mode=0o700, exist_ok=True)
        return self.controller(folder / f"admin-{port}.sock", **answers)

    def plan(self):
        path = self.folder / "plan.yaml"
        path.write_text(PLAN)
        return str(path)

    def test_status_as_text_and_json(self):
        controller = self.controller(status=[status()])
        text = run("status", "--base-url", controller.url, *KEY).stdout
        self.assertIn("demo, plan 3, term 1: ready", text)
        self.assertRegex(text, r"(?m)^a +\[######\.{6}\] 0-5 +0 +0 +0/512 +0 %$")
        self.assertRegex(text, r"(?m)^b +serving +6\.00 MiB ")
        said = run("status", "--json", "--base-url", controller.url,
                   env={**os.environ, "MILLRACE_ADMIN_KEY": "sesame"}).stdout
        self.assertEqual(json.loads(said), status()[1])
        self.assertEqual([a[2] for a in controller.asked], ["Bearer sesame", "Bearer sesame"])

    def test_this_machine_is_asked_on_its_socket_without_a_key(self):
        first = self.unix_controller(8000, status=[status()])
        other = self.unix_controller(8001, status=[status(epoch=9)], drain=[(200, {"status": "ok"})])
        environment = self.environment()
        self.assertIn("demo, plan 3,", run("status", env=environment).stdout)
        # As inside the controller's own container.
        with_key = {**environment, "MILLRACE_ADMIN_KEY": "sesame"}
        self.assertIn("demo, plan 3,", run("status", env=with_key).stdout)
        for host in ("127.0.0.1", "localhost", "[::1]"):
            said = run("status", "--base-url", f"http://{host}:8001", env=environment).stdout
            self.assertIn("demo, plan 9,", said)
        self.assertEqual([a[2] for a in first.asked + other.asked], [None] * 5)
        run("drain", "b", "--no-wait", "--base-url", "http://localhost:8001", env=environment)
        self.assertEqual(json.loads(other.asked[-1][3]), {"worker": "b"})

    # The user of this test may have a server of their own on the default port.
    QUIET = ("--base-url", "http://127.0.0.1:7")

    def test_no_socket_is_explained(self):
        (self.folder / "millrace").mkdir(mode=0o700)
        said = run("status", *self.QUIET, env=self.environment(), status=1).stderr
        self.assertEqual(said.count("\n"), 1)
        self.assertIn(f"{self.folder}/millrace/admin-7.sock", said)
        self.assertIn("Is a server running on port 7?", said)
        self.assertIn("sudo -u USER", said)
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(self.folder / "millrace/admin-7.sock"))
        said = run("status", *self.QUIET, env=self.environment(), status=1).stderr
        self.assertIn("nothing is listening on", said)

    def test_a_folder_that_others_enter_is_not_trusted(self):
        self.unix_controller(7, status=[status()])
        (self.folder / "millrace").chmod(0o755)
        said = run("status", *self.QUIET, env=self.environment(), status=1).stderr
        self.assertIn("chmod 700", said)

    def test_a_key_goes_to_an_address_and_no_key_to_this_machine(self):
        for arguments, wanted in (
                (("--base-url", "http://10.0.0.1:8000"), "is on another machine: give the"),
                (("--base-url", "http://127.0.0.1.example:8000"), "is on another machine"),
                (KEY, "give that address as --base-url"),
                (("--base-url", "http://127.0.0.1:8000/v1"), "ends after the port"),
                (("--ca-file", "ca.crt"), "--ca-file is for an https --base-url")):
            said = run("status", *arguments, env=self.environment(), status=1).stderr
            self.assertIn(wanted, said)
            self.assertEqual(said.count("\n"), 1)

    def test_plan_diff(self):
        controller = self.controller(status=[status()])
        said = run("plan", "diff", self.plan(), "--base-url", controller.url, *KEY).stdout
        self.assertIn("a: 0-5 -> 0-7: gets 6-7 (about 2.00 MiB)", said)
        self.assertIn("b: 6-11 -> 8-11: drops 6-7", said)
        self.assertEqual([a[:2] for a in controller.asked], [("GET", "/cluster/status")])

    def test_plan_apply_waits_until_it_is_in_force(self):
        controller = self.controller(status=[status(), status(changing=True), status(4)],
                                     plan=[(200, {"status": "ok"})])
        done = run("plan", "apply", self.plan(), "--base-url", controller.url, *KEY)
        self.assertEqual(done.stdout, "plan 4 is in force\n")
        posted = next(a for a in controller.asked if a[0] == "POST")
        self.assertEqual(json.loads(posted[3]), {"plan": PLAN})

    def test_plan_apply_says_when_it_was_given_up(self):
        controller = self.controller(status=[status()], plan=[(200, {"status": "ok"})])
        done = run("plan", "apply", self.plan(), "--base-url", controller.url, *KEY, status=1)
        self.assertIn("the plan was given up and plan 3 stays in force", done.stderr)

    def test_plan_apply_says_why_it_was_given_up(self):
        code, body = status()
        body["given_up"] = {"plan": 4, "reason": "worker b cannot load layers 8-11: no memory"}
        controller = self.controller(status=[status(), (code, body)],
                                     plan=[(200, {"status": "ok"})])
        done = run("plan", "apply", self.plan(), "--base-url", controller.url, *KEY, status=1)
        self.assertIn("plan 3 stays in force: worker b cannot load layers 8-11: no memory", done.stderr)

    def test_drain_says_that_the_worker_stays(self):
        code, body = status()
        body["given_up"] = {"plan": 4, "reason": "worker c cannot load layers 6-11: no memory"}
        controller = self.controller(status=[(code, body)], drain=[(200, {"status": "ok"})])
        done = run("drain", "b", "--base-url", controller.url, *KEY, status=1)
        self.assertIn("b keeps serving", done.stderr)
        self.assertIn("no memory", done.stderr)

    def test_drain_waits_until_nothing_is_left(self):
        controller = self.controller(status=[status(), status(b_layers=())],
                                     drain=[(200, {"status": "ok"})])
        done = run("drain", "b", "--base-url", controller.url, *KEY)
        self.assertEqual(done.stderr, "b still has layers 6-11 and 0 requests on its pipelines\n")
        self.assertEqual(done.stdout, "b is free; it can be stopped\n")

    def test_drain_gives_up_in_time(self):
        controller = self.controller(status=[status()], drain=[(200, {"status": "ok"})])
        done = run("drain", "b", "--timeout", "0.1", "--base-url", controller.url, *KEY, status=1)
        self.assertIn("not done after --timeout 0.1: b still has layers 6-11", done.stderr)

    def test_migrate_names_request_and_worker(self):
        controller = self.controller(migrate=[(200, {"status": "ok"})])
        run("migrate", "cmpl-1", "b", "--base-url", controller.url, *KEY)
        self.assertEqual(json.loads(controller.asked[0][3]), {"request": "cmpl-1", "worker": "b"})

    def test_decisions_in_short_in_full_and_as_a_plan(self):
        plan = {"shape": "a 0-3, b 0-3", "method": "flow", "requests_per_s": 6.0,
                "plan": "format: 1\n"}
        decisions = [{"id": 1, "at": 1.7e9, "cause": "start", "why": "5 requests/s",
                      "decision": "keep", "reason": "the plan in force is the best found",
                      "outcome": ""},
                     {"id": 2, "at": 1.7e9, "cause": "workers changed", "why": "gained b",
                      "decision": "change", "reason": "twice as much", "outcome": "verified",
                      "candidates": [plan]}]
        said = (200, {"autopilot": True, "decisions": decisions})
        controller = self.controller(decisions=[said] * 7)
        ask = lambda *words, status=0: run("decisions", *words, "--base-url", controller.url, *KEY,
                                           status=status)
        listed = ask().stdout
        self.assertIn("  keep  (start: 5 requests/s)\n      the plan in force is the best", listed)
        self.assertNotIn("found ", listed.replace("best found", ""))
        self.assertNotIn("start", ask("--last", "1").stdout)
        self.assertIn("  found           6 req/s  a 0-3, b 0-3\n", ask("2").stdout)
        self.assertEqual(ask("--plan", "2").stdout, "format: 1\n")
        self.assertEqual(ask("--plan", "1", status=1).stderr,
                         "millrace decisions: decision 1 found no plan\n")
        self.assertIn("there is no decision 3: `millrace decisions` lists", ask("3", status=1).stderr)
        self.assertEqual(json.loads(ask("--json").stdout)["decisions"], decisions)
        none = self.controller(decisions=[(200, {"autopilot": False, "decisions": []})])
        self.assertIn("start its controller with --autopilot advise or act",
                      run("decisions", "--base-url", none.url, *KEY, status=1).stderr)

    def test_fleet_as_a_table_and_as_it_was_said(self):
        code, body = status()
        body["fleet"] = {
            "kinds": [{"name": "spot\n", "provider": "exec", "usd_per_h": 0.35, "wanted": 3,
                       "serving": 2, "on_order": 1, "draining": 0, "leaving": 0, "trouble": "slow"}],
            "usd_per_h": 0.7, "budget_usd_per_h": None, "short_of": "budget",
            "events": [{"at": 1.7e9, "cause": "load", "text": "asks for 1 spot"}]}
        controller = self.controller(status=[(code, body)])
        shown = run("fleet", "--base-url", controller.url, *KEY).stdout
        self.assertIn("\nspot\\n  exec       0.35       3        2         1", shown)
        self.assertIn("\ncost 0.7 USD/h; per million tokens - USD now", shown)
        self.assertIn("  asks for 1 spot (load)\n", shown)
        self.assertEqual(json.loads(run("fleet", "--json", "--base-url", controller.url,
                                        *KEY).stdout), body["fleet"])
        none = self.controller(status=[status()])
        self.assertIn("start its controller with --fleet FILE",
                      run("fleet", "--base-url", none.url, *KEY, status=1).stderr)

    def test_refusals_are_the_servers_words_in_one_line(self):
        for code, body, wanted in (
                (404, {"error": {"message": "no worker 'x'"}}, "millrace drain: no worker 'x'\n"),
                (500, "two\nlines", "millrace drain: HTTP 500: two\\nlines\n"),
                (200, "no JSON", None), (200, [1], None)):
            controller = self.controller(drain=[(code, body)])
            done = run("drain", "x", "--base-url", controller.url, *KEY, status=1)
            self.assertEqual(done.stderr.count("\n"), 1)
            if wanted:
                self.assertEqual(done.stderr, wanted)


if __name__ == "__main__":
    unittest.main()
