#!/usr/bin/env python3
"""Files that a server reads again while it runs: API keys and the TLS certificate.

Usage: reload_test.py PROGRAM [unittest arguments]
"""
import pathlib
import signal
import ssl
import unittest

from options_harness import Running

from harness.cases import DEMO, FolderTest, take_paths
from harness.fakes import make_certificate
from harness.waiting import wait_for

PROGRAM, = take_paths(1)


class Reload(FolderTest):
    def setUp(self):
        super().setUp()
        self.keys = self.folder / "keys"

    def write(self, path, text):
        """In one step."""
        made = self.folder / "made"
        made.write_text(text)
        made.replace(path)

    def start(self, *words):
        server = Running(PROGRAM, "serve", self.folder, [DEMO, "--port", "0", *words])
        self.addCleanup(server.end)
        return server

    def status(self, server, key):
        return server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0]

    def test_keys(self):
        self.write(self.keys, "# a comment\nfirst\n\nsecond\n")
        server = self.start("--api-key", "always", "--api-key-file", self.keys)
        for key, status in (("first", 200), ("second", 200), ("always", 200), ("third", 401)):
            self.assertEqual(self.status(server, key), status, key)
        self.write(self.keys, "third\n")
        wait_for(lambda: self.status(server, "third") == 200, "the new key is there")
        self.assertEqual(self.status(server, "first"), 401)
        self.assertEqual(self.status(server, "always"), 200)
        for bad, words in (("# nothing\n", "contains no API key"), ("two words\n", "not visible")):
            self.write(self.keys, bad)
            line = wait_for(lambda: server.said(words), "it is refused")[0]
            self.assertIn("stays in force", line)
            self.assertEqual(self.status(server, "third"), 200)
            self.assertNotIn("two words", line)
        self.keys.unlink()
        wait_for(lambda: server.said("no such file"), "it is missed")
        self.assertEqual(self.status(server, "third"), 200)
        self.write(self.keys, "fourth\n")
        wait_for(lambda: self.status(server, "fourth") == 200, "the file is back")
        before = len(server.said("API keys: read again"))
        server.send_signal(signal.SIGHUP)
        wait_for(lambda: len(server.said("API keys: read again")) > before, "SIGHUP")

    def test_certificate(self):
        paths = make_certificate(self.folder)
        first = [pathlib.Path(path).read_text() for path in paths]
        (self.folder / "next").mkdir()
        others = make_certificate(self.folder / "next")
        second = [pathlib.Path(path).read_text() for path in others]
        server = self.start("--ssl-certfile", paths[0], "--ssl-keyfile", paths[1])

        def seen():
            return ssl.get_server_certificate((server.host, server.port))

        self.assertEqual(ssl.PEM_cert_to_DER_cert(seen()), ssl.PEM_cert_to_DER_cert(first[0]))
        with server.connect() as old:
            old.request("GET", "/health")
            old.getresponse().read()
            self.write(paths[0], second[0])
            wait_for(lambda: server.said("does not belong to the certificate"), "the key is old")
            self.assertEqual(ssl.PEM_cert_to_DER_cert(seen()), ssl.PEM_cert_to_DER_cert(first[0]))
            self.write(paths[1], second[1])
            wait_for(lambda: ssl.PEM_cert_to_DER_cert(seen()) ==
                       ssl.PEM_cert_to_DER_cert(second[0]), "the new certificate is shown")
            old.request("GET", "/health")
            self.assertEqual(old.getresponse().status, 200, "a connection keeps what it has")

    def test_a_server_without_such_files_ends_at_sighup(self):
        server = self.start()
        server.send_signal(signal.SIGHUP)
        self.assertEqual(server.process.wait(60), -signal.SIGHUP)


if __name__ == "__main__":
    unittest.main(verbosity=2)
