#!/usr/bin/env python3
"""Access to the admin routes of a real server: none through a proxy, its own user's on a unix socket,
with the admin key on --admin-listen.

Usage: admin_test.py PROGRAM [unittest arguments]
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import stat
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import DEMO, FolderTest, take_paths  # noqa: E402
from harness.http import UnixConnection, ask, send  # noqa: E402
from harness.ports import Link  # noqa: E402
from harness.processes import Process, Server, run  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

MODEL = str(DEMO)
PROGRAM, = take_paths(1)
TIMEOUT_S = 120
ADMIN_ROUTES = (("GET", "/cluster/status", None), ("GET", "/cluster/decisions", None),
                ("POST", "/cluster/plan", {"plan": "format: 1\n"}),
                ("POST", "/cluster/drain", {"worker": "this-process"}),
                ("POST", "/cluster/migrate", {"request": "1", "worker": "this-process"}),
                ("GET", "/debug/requests", None), ("GET", "/debug/requests/1", None))


def proxy(to_port, host=None):
    """Forwards connections to a port of this machine, as a TCP forwarder does; with `host` it writes
    that into the Host header, as a reverse proxy without further settings does."""
    def change(data):
        return re.sub(rb"(?m)^Host: [^\r]*", b"Host: " + host.encode(), data)
    return Link(to_port, change if host else None)


class Served(Server):
    """With an environment of its own."""

    def __init__(self, runtime, *flags, port=0):
        super().__init__(PROGRAM, "serve", MODEL, "--port", port, *flags, env=environment(runtime))
        self.wait_for("curl ")
        self.socket = pathlib.Path(self.admin_path)

    def tcp(self, port=None):
        return http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=TIMEOUT_S)

    def unix(self):
        return UnixConnection(self.socket)


def environment(runtime):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE_")}
    return {**kept, "XDG_RUNTIME_DIR": str(runtime)}


class AdminTest(FolderTest):
    def serve(self, *flags, port=0):
        server = Served(self.folder, *flags, port=port)
        self.addCleanup(server.stop, signal.SIGKILL)
        return server

    def run_program(self, *args, status=0, env=None):
        return run(PROGRAM, *args, status=status, env={**environment(self.folder), **(env or {})})


class ThroughAProxy(AdminTest):
    HEADERS = ({}, {"Host": "localhost:8000"}, {"Host": "127.0.0.1"}, {"X-Forwarded-For": "127.0.0.1"},
               {"Authorization": "Bearer sesame"}, {"Authorization": "Bearer open-barley"},
               {"Connection": "close", "Via": "1.1 a"})

    def check(self, server, make_connection):
        for method, path, body in ADMIN_ROUTES:
            for headers in self.HEADERS:
                code, _, text = ask(make_connection(), method, path, body, headers)
                self.assertEqual(code, 404, f"{method} {path} {headers}: {text}")
                message = json.loads(text)["error"]["message"]
                self.assertIn("unix socket", message)
                self.assertIn("--admin-listen", message)
        self.assertEqual(ask(server.unix(), "GET", "/cluster/status")[0], 200)

    def test_no_admin_route_is_reached(self):
        for flags in ((), ("--api-key", "sesame"),
                      ("--admin-listen", "127.0.0.1:0", "--admin-key", "open-barley")):
            server = self.serve(*flags)
            forged = [{}, {"host": f"127.0.0.1:{server.port}"}, {"host": "localhost"}]
            for settings in forged:
                through = proxy(server.port, **settings)
                self.addCleanup(through.close)
                self.assertEqual(ask(server.tcp(through.port), "GET", "/health")[0], 200)
                self.check(server, lambda port=through.port: server.tcp(port))
            self.check(server, server.tcp)
            self.assertEqual(server.stop(), 0)


class OnTheSocket(AdminTest):
    def test_its_user_is_served_without_a_key(self):
        server = self.serve("--api-key", "sesame")
        self.assertEqual(server.socket, self.folder / "millrace" / f"admin-{server.port}.sock")
        self.assertEqual(stat.S_IMODE(server.socket.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(server.socket.parent.stat().st_mode), 0o700)
        for path in ("/cluster/status", "/debug/requests", "/metrics", "/health", "/ready"):
            self.assertEqual(ask(server.unix(), "GET", path)[0], 200, path)
        # Clients' routes are not there, and /metrics on the main port needs the API key.
        self.assertEqual(ask(server.unix(), "GET", "/v1/models")[0], 404)
        self.assertEqual(ask(server.tcp(), "GET", "/metrics")[0], 401)
        key = {"Authorization": "Bearer sesame"}
        self.assertEqual(ask(server.tcp(), "GET", "/metrics", headers=key)[0], 200)
        said = self.run_program("status", "--base-url", f"http://127.0.0.1:{server.port}").stdout
        self.assertIn("this-process", said)
        refused = self.run_program("drain", "this-process", "--base-url",
                                   f"http://localhost:{server.port}", status=1).stderr
        self.assertNotIn("unix socket", refused)  # the controller's own words: it was asked
        self.assertEqual(server.stop(), 0)

    def test_the_file_goes_with_the_server_or_is_replaced(self):
        server = self.serve()
        path, port = server.socket, server.port
        self.assertEqual(server.stop(), 0)
        self.assertFalse(path.exists())
        killed = self.serve(port=port)
        killed.stop(signal.SIGKILL)
        self.assertTrue(path.exists())
        said = self.run_program("status", "--base-url", f"http://127.0.0.1:{port}", status=1).stderr
        self.assertIn("nothing is listening on", said)
        again = self.serve(port=port)
        self.assertEqual(ask(again.unix(), "GET", "/cluster/status")[0], 200)
        self.assertEqual(again.stop(), 0)

    def test_the_file_goes_with_a_standby(self):
        """It has a socket while it waits, as it would while it loads, and leaves none."""
        token = str(self.folder / "cluster.token")
        self.run_program("token", "--out", token)
        cluster = ("--cluster", f"sqlite:{self.folder / 'state'}", "--listen", "127.0.0.1:0",
                   "--token", token)
        leader = self.serve(*cluster)
        standby = Process(PROGRAM, "serve", MODEL, "--port", "0", *cluster,
                          env=environment(self.folder))
        self.addCleanup(standby.kill)
        standby.wait_for("standing by")
        path = pathlib.Path(standby.admin_path)
        self.assertEqual(ask(UnixConnection(path), "GET", "/cluster/status")[0], 503)
        self.assertEqual(standby.stop(), 0)
        self.assertFalse(path.exists())
        self.assertTrue(leader.socket.exists())

    def test_the_file_goes_when_a_second_signal_ends_the_server_at_once(self):
        server = self.serve("--shutdown-timeout", "100")
        connection = server.tcp()
        send(connection, "POST", "/v1/completions", {
            "prompt": "x", "max_tokens": 900, "ignore_eos": True, "n": 64, "stream": True}).readline()
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        self.assertIn(server.stop(signal.SIGTERM), (0, 130))  # 0: it was done before
        connection.close()
        self.assertFalse(server.socket.exists())

    def test_a_file_that_was_removed_comes_back(self):
        """As at the end of the user's last session, when its folder goes."""
        server = self.serve()
        shutil.rmtree(server.socket.parent)

        def answers():
            with contextlib.suppress(OSError):  # until it listens again
                return ask(server.unix(), "GET", "/cluster/status")[0] == 200
        wait_for(answers, "it answers on the socket", TIMEOUT_S)
        self.assertEqual(server.stop(), 0)
        self.assertFalse(server.socket.exists())

    def test_a_runtime_folder_that_anybody_may_write_will_do(self):
        """As containers have: the socket's own folder is what protects it."""
        shared = self.folder / "run"
        shared.mkdir()
        shared.chmod(0o2777)
        server = Served(shared)
        self.addCleanup(server.stop, signal.SIGKILL)
        self.assertEqual(stat.S_IMODE(server.socket.parent.stat().st_mode) & 0o777, 0o700)
        self.assertEqual(server.stop(), 0)

    def test_the_socket_of_a_running_server_stays_its_own(self):
        server = self.serve()
        said = self.run_program("serve", MODEL, "--host", "127.0.0.2", "--port", str(server.port),
                                "--log-level", "error", status=1).stderr
        self.assertEqual(said.count("\n"), 1)
        self.assertIn(f"another process is already listening on {server.socket}", said)
        self.assertIn("choose another --port", said)
        self.assertEqual(ask(server.unix(), "GET", "/cluster/status")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_a_folder_that_others_enter_is_refused(self):
        (self.folder / "millrace").mkdir()
        (self.folder / "millrace").chmod(0o755)
        said = self.run_program("serve", MODEL, "--port", "0", "--log-level", "error",
                                status=1).stderr
        self.assertIn(f"{self.folder}/millrace has mode 0755", said)
        self.assertIn("chmod 700", said)

    def test_a_runtime_folder_too_long_for_a_socket_is_skipped(self):
        long = self.folder / ("x" * 100)
        long.mkdir()
        server = Served(long)
        self.addCleanup(server.stop, signal.SIGKILL)
        self.assertNotIn(str(long), str(server.socket))
        said = self.run_program("status", "--base-url", f"http://127.0.0.1:{server.port}",
                                env={"XDG_RUNTIME_DIR": str(long)}).stdout
        self.assertIn("this-process", said)
        self.assertEqual(server.stop(), 0)


class WithAKey(AdminTest):
    def serve_admin(self, *more):
        server = self.serve("--admin-listen", "127.0.0.1:0", "--api-key", "sesame", *more)
        found = re.search(r"with the admin key, on (https?://127\.0\.0\.1:(\d+))", server.output)
        return server, found.group(1), int(found.group(2))

    def test_only_the_admin_key_opens_the_address(self):
        server, url, port = self.serve_admin("--admin-key", "open-barley")
        self.assertNotIn("open-barley", server.output)
        paths = (*ADMIN_ROUTES, ("GET", "/metrics", None), ("GET", "/health", None))
        for method, path, body in paths:
            for headers in ({}, {"Authorization": "Bearer sesame"}, {"Authorization": "open-barley"},
                            {"Authorization": "Bearer open-barle"}, {"Host": "localhost"}):
                code, answer, _ = ask(server.tcp(port), method, path, body, headers)
                self.assertEqual((code, answer["WWW-Authenticate"]), (401, "Bearer"), path)
        key = {"Authorization": "Bearer open-barley"}
        for path in ("/cluster/status", "/debug/requests", "/metrics", "/health"):
            self.assertEqual(ask(server.tcp(port), "GET", path, headers=key)[0], 200, path)
        self.assertEqual(ask(server.tcp(port), "GET", "/v1/models", headers=key)[0], 404)

        said = self.run_program("status", "--base-url", url,
                                env={"MILLRACE_ADMIN_KEY": "open-barley"}).stdout
        self.assertIn("this-process", said)
        said = self.run_program("status", "--base-url", url, "--admin-key", "wrong", status=1).stderr
        self.assertIn("needs the admin key", said)
        # Sent to the main port, the key is answered with where to send it.
        said = self.run_program("status", "--base-url", f"http://127.0.0.1:{server.port}",
                                "--admin-key", "open-barley", status=1).stderr
        self.assertIn("--admin-listen", said)
        self.assertEqual(server.stop(), 0)

    def test_it_has_tls_when_the_main_port_has(self):
        self.run_program("certs", "--out", str(self.folder / "tls"), "--host", "127.0.0.1")
        tls = self.folder / "tls" / "controller"
        server, url, port = self.serve_admin("--admin-key", "open-barley", "--ssl-certfile",
                                             str(tls / "tls.crt"), "--ssl-keyfile",
                                             str(tls / "tls.key"))
        self.assertTrue(url.startswith("https://"))
        said = self.run_program("status", "--base-url", url, "--admin-key", "open-barley",
                                "--ca-file", str(tls / "ca.crt")).stdout
        self.assertIn("this-process", said)
        context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context,
                                                 timeout=TIMEOUT_S)
        self.assertEqual(ask(connection, "GET", "/cluster/status")[0], 401)
        # On this machine the socket does without.
        said = self.run_program("status", "--base-url", f"https://127.0.0.1:{server.port}").stdout
        self.assertIn("this-process", said)
        self.assertEqual(server.stop(), 0)

    def test_a_taken_address_is_one_line_and_leaves_no_file(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            said = self.run_program("serve", MODEL, "--port", "0", "--admin-listen", address,
                                    "--admin-key", "k", "--log-level", "error", status=1).stderr
        self.assertEqual(said.count("\n"), 1)
        self.assertIn("--admin-listen: cannot listen on " + address, said)
        self.assertEqual(list((self.folder / "millrace").iterdir()), [])


if __name__ == "__main__":
    unittest.main()
