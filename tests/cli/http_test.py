#!/usr/bin/env python3
"""Talks HTTP to the real program as clients do that are no SDK: monitors, scripts, old tools.

Usage: http_test.py PROGRAM [unittest arguments]
"""
import gzip
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import DEMO, ROOT, FolderTest, take_paths  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import Process, Server, run  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

MODEL = str(DEMO)
PROGRAM, = take_paths(1)
KEY = "http-test-key"
TIMEOUT_S = 120
LEAVES_WITHIN_S = 5  # half a second on a machine that does nothing else


def serve(*flags):
    return Server(PROGRAM, "serve", MODEL, *flags)


def post_bytes(fields, version="1.1", headers=""):
    body = json.dumps({"prompt": "And it came to pass", "temperature": 0, "ignore_eos": True,
                       **fields}).encode()
    head = (f"POST /v1/completions HTTP/{version}\r\nHost: t\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{headers}\r\n")
    return head.encode() + body


def read_all(connection):
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts).decode()


def read_answer(connection):
    """One answer with a Content-Length; the connection may stay open."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, body = data.split(b"\r\n\r\n", 1)
    length = int(re.search(rb"Content-Length: (\d+)", head).group(1))
    while len(body) < length:
        body += connection.recv(65536)
    return head.decode(), body.decode()


class UnixSocket(FolderTest):
    """--uds: the main port on a unix socket, and the line that is printed to try it."""

    def setUp(self):
        super().setUp()
        self.path = self.folder / "it's here.sock"

    def start(self, port):
        process = Process(PROGRAM, "serve", MODEL, "--uds", self.path.name, "--port", port,
                          cwd=self.folder)
        self.addCleanup(process.kill)
        return process

    def test_a_server_on_a_unix_socket(self):
        port = free_port()
        server = self.start(port)
        line = re.search(r"curl --unix-socket .*", server.wait_for("curl ")).group(0)
        self.assertIn("Serving demo on unix socket it's here.sock", server.output)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        with self.assertRaises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        done = subprocess.run(["bash", "-c", line.replace("curl", "curl -sS", 1)], text=True,
                              cwd=self.folder, capture_output=True, timeout=TIMEOUT_S, check=True)
        self.assertEqual(json.loads(done.stdout)["model"], "demo")
        status = run(PROGRAM, "status", "--base-url", f"http://127.0.0.1:{port}")
        self.assertIn("this-process", status.stdout)
        self.start(free_port()).wait_for("another process is already listening on")
        server.kill()
        again = self.start(port)
        again.wait_for("curl ")  # the file of the killed one is replaced
        self.assertEqual(again.stop(), 0)
        self.assertFalse(self.path.exists())

    def test_what_does_not_go_with_it(self):
        for words, sentence in ((["--host", "0.0.0.0"], "takes the place of --host"),
                                (["--port", "0"], "give one that is not 0"),
                                (["--ssl-certfile", __file__, "--ssl-keyfile", __file__],
                                 "TLS is not supported on a unix socket")):
            done = run(PROGRAM, "serve", MODEL, "--uds", self.path, *words, status=2)
            self.assertIn(sentence, done.stderr)


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class Hosts(unittest.TestCase):
    """--host as people spell it. The address that is printed is one that clients reach."""

    def test_spellings(self):
        spellings = [("localhost", "localhost"), ("*", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")]
        if has_ipv6():
            spellings += [("::1", "[::1]"), ("[::1]", "[::1]"), ("[::]", "127.0.0.1")]
        for given, shown in spellings:
            with self.subTest(given):
                server = serve("--host", given)
                self.addCleanup(server.stop)
                self.assertIn(f"Serving demo on http://{shown}:{server.port}\n", server.output)
                self.assertEqual((server.host, server.get("/ready")[0]), (shown, 200))


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def open(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT_S)

    def test_head_is_answered_wherever_get_is(self):
        for path in ("/health", "/ready", "/version", "/v1/models", "/v1/models/demo", "/metrics"):
            head, get = self.server.request("HEAD", path), self.server.request("GET", path)
            self.assertEqual((head.status, head.text), (200, ""), path)
            self.assertEqual(head.headers["Content-Type"], get.headers["Content-Type"])
            if path != "/metrics":  # whose numbers change
                self.assertEqual(head.headers["Content-Length"], get.headers["Content-Length"])
        refused = self.server.request("HEAD", "/v1/completions")
        self.assertEqual((refused.status, refused.headers["allow"]), (405, "POST"))

    def test_a_client_that_closes_its_sending_half_gets_its_answer(self):
        for fields, end in (({"max_tokens": 40}, "}"),
                            ({"max_tokens": 40, "stream": True}, "data: [DONE]\n\n\r\n0\r\n\r\n")):
            with self.open() as connection:
                connection.sendall(post_bytes(fields))
                connection.shutdown(socket.SHUT_WR)
                answer = read_all(connection)
            self.assertIn("HTTP/1.1 200 OK", answer)
            self.assertTrue(answer.endswith(end), answer[-200:])

    def test_a_client_that_leaves_frees_its_request(self):
        for version in ("1.1", "1.0"):
            for stream in (False, True):
                for reset in (False, True):
                    self.leave(version, stream, reset)

    def leave(self, version, stream, reset):
        connection = self.open()
        connection.sendall(post_bytes({"max_tokens": 400, "n": 8, "stream": stream}, version))
        while not self.server.metric("vllm:num_requests_running"):
            time.sleep(0.01)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        closed = time.monotonic()
        while self.server.metric("vllm:num_requests_running"):
            took = time.monotonic() - closed
            self.assertLess(took, LEAVES_WITHIN_S, (version, stream, reset))
            time.sleep(0.01)

    def test_http_1_0_keeps_the_connection_when_it_asks_to(self):
        with self.open() as connection:
            for _ in range(3):
                connection.sendall(post_bytes({"max_tokens": 2}, "1.0", "Connection: keep-alive\r\n"))
                head, body = read_answer(connection)
                self.assertIn("\r\nConnection: keep-alive", head)
                self.assertEqual(json.loads(body)["usage"]["completion_tokens"], 2)
            connection.sendall(post_bytes({"max_tokens": 2, "stream": True}, "1.0",
                                          "Connection: keep-alive\r\n"))
            answer = read_all(connection)
            self.assertIn("\r\nConnection: close\r\n", answer)
            self.assertTrue(answer.endswith("data: [DONE]\n\n"), answer)

    def test_a_body_may_be_gzip(self):
        fields = {"prompt": "Once", "max_tokens": 4, "temperature": 0, "seed": 1}

        def post(data, coding="gzip"):
            return self.server.request("POST", "/v1/completions", data, {"Content-Encoding": coding})

        plain = json.loads(post(json.dumps(fields).encode(), "identity").text)
        for padding in ("", " " * 1_000_000):
            answer = post(gzip.compress((json.dumps(fields) + padding).encode()))
            self.assertEqual(answer.status, 200, answer.text)
            self.assertEqual(json.loads(answer.text)["choices"], plain["choices"])
        damaged = post(gzip.compress(json.dumps(fields).encode())[:-9])
        self.assertEqual(damaged.status, 400)
        self.assertIn("it ends too early", damaged.text)
        bomb = post(gzip.compress(bytes(1 << 28)))
        self.assertEqual(bomb.status, 413)
        self.assertIn("limit of 16777216 bytes", bomb.text)
        other = post(b"x", "br")
        self.assertEqual(other.status, 415)
        self.assertIn("Content-Encoding 'br'", other.text)

    def test_the_path_of_the_model_is_shown_nowhere(self):
        for path in ("/v1/models", "/v1/models/demo", "/metrics", "/version"):
            self.assertNotIn(MODEL, self.server.request("GET", path).text, path)
        cards = json.loads(self.server.request("GET", "/v1/models").text)["data"]
        self.assertEqual([(card["id"], card["root"]) for card in cards], [("demo", "demo")])
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
        answer = json.loads(self.server.request("POST", "/v1/completions", body).text)
        self.assertEqual(answer["model"], "demo")

    def test_ignored_fields_are_named(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tools": tools,
                "user": "u", "temprature": 1}
        for stream in (False, True):
            answer = self.server.request("POST", "/v1/chat/completions", {**body, "stream": stream})
            self.assertEqual(answer.status, 200, answer.text)
            self.assertEqual(answer.headers["X-Millrace-Ignored"], "temprature, tools, user")

    def test_metrics_are_what_vllms_boards_ask_for(self):
        self.server.request("POST", "/v1/completions", {"prompt": 5})
        text = self.server.request("GET", "/metrics").text
        self.assertRegex(text, r'http_requests_total\{[^}]*status="4xx"[^}]*\} [1-9]')
        self.assertNotRegex(text, r'http_requests_total\{[^}]*status="[0-9]+"')
        self.assertNotRegex(text, r'http_requests_total\{[^}]*handler="/(health|metrics)"')
        self.assertRegex(text, r'vllm:engine_sleep_state\{[^}]*sleep_state="awake"[^}]*\} 1')
        for reason in ("capacity", "deferred"):
            self.assertRegex(text, rf'vllm:num_requests_waiting_by_reason\{{[^}}]*"{reason}"[^}}]*\}} 0')


class Keys(unittest.TestCase):
    def test_a_key_comes_in_one_of_three_headers(self):
        server = serve("--api-key", KEY)
        self.addCleanup(server.stop)
        for headers in ({}, {"x-api-key": "wrong"}, {"Authorization": "Bearer wrong", "api-key": KEY}):
            answer = server.request("GET", "/v1/models", headers=headers)
            self.assertEqual(answer.status, 401, headers)
            self.assertEqual(answer.headers["WWW-Authenticate"], "Bearer")
        for headers in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}, {"api-key": KEY}):
            self.assertEqual(server.request("GET", "/v1/models", headers=headers).status, 200, headers)


class Documented(unittest.TestCase):
    """Every request of docs/http-api.md to the port is answered with 200."""

    def test_the_requests_of_the_page(self):
        server = serve()
        self.addCleanup(server.stop)
        page = (ROOT / "docs" / "http-api.md").read_text()
        blocks = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
        commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()
                    if line.startswith("curl http://127.0.0.1:8000")]
        self.assertGreater(len(commands), 7)
        for command in commands:
            with self.subTest(command):
                asked = command.replace(":8000", f":{server.port}")
                asked = asked.replace("curl", "curl -sS -w '\\n%{http_code}'", 1)
                done = subprocess.run(["bash", "-c", asked], text=True, capture_output=True,
                                      timeout=TIMEOUT_S, check=False)
                answer, _, status = done.stdout.rpartition("\n")
                self.assertEqual(status, "200", answer + done.stderr)
                json.loads(answer)


class FairShares(unittest.TestCase):
    """One place, 24 requests of one key, then one of another: it is served among the first that are
    left with --scheduling-policy fair, and after all of them without."""

    def place_of_the_late_one(self, *flags):
        server = serve("--api-key", "many", "--api-key", "few", "--max-num-seqs", "1", *flags)
        self.addCleanup(server.stop)
        server.key = "many"
        ended, threads = [], []

        def ask(key):
            answer = server.request("POST", "/v1/completions",
                                 {"prompt": "Once", "max_tokens": 120, "ignore_eos": True},
                                 {"Authorization": f"Bearer {key}"})
            ended.append((key, answer.status))

        def waiting():
            return sum(server.metric(f"vllm:num_requests_{how}") for how in ("waiting", "running"))

        for key, count in (("many", 24), ("few", 1)):
            for _ in range(count):
                threads.append(threading.Thread(target=ask, args=(key,)))
                threads[-1].start()
            wait_for(lambda: waiting() + len(ended) >= len(threads), "all are there", TIMEOUT_S, 0.005)
        before = len(ended)
        for thread in threads:
            thread.join()
        self.assertEqual({status for _, status in ended}, {200})
        return ended.index(("few", 200)) - before

    def test_another_key_does_not_wait_for_all(self):
        self.assertLessEqual(self.place_of_the_late_one("--scheduling-policy", "fair"), 3)
        self.assertGreaterEqual(self.place_of_the_late_one(), 10)


class Templates(FolderTest):
    def test_a_template_that_nests_too_deep_is_an_error_of_its_file(self):
        model = self.folder / "model"
        shutil.copytree(MODEL, model)
        template = model / "chat_template.jinja"
        for source in ("{{ " + "not " * 100_000 + "x }}", "{{ " + "[" * 100_000 + " }}",
                       "{{ x" + " ~ x" * 100_000 + " }}",
                       "{% if x %}" + "{% elif x %}" * 60_000 + "{% endif %}"):
            template.write_text("first line\n" + source)
            done = run(PROGRAM, "serve", model, "--port", "0", status=1)
            self.assertIn(str(template), done.stderr)
            self.assertRegex(done.stderr, r"more than \d+ .*line 2, column \d+")


if __name__ == "__main__":
    unittest.main()
