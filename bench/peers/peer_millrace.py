"""Millrace itself, served as the others are."""
import subprocess

from common import Peer

# What a server may keep for the load's largest part: 16 requests of 512 tokens and their answers.
CONTEXT_TOKENS = 1024
SEQUENCES_MAX = 16


class Millrace(Peer):
    name = "millrace"
    title = "Millrace"
    ready_path = "/ready"

    def __init__(self, binary):
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
        self.version = done.stdout.strip().split("\n")[0].removeprefix("millrace ")

    def command(self, setting, port):
        return [setting.binary, "serve", setting.hf_model, "--host", "127.0.0.1", "--port", port,
                "--threads", setting.threads, "--served-model-name", "bench",
                "--max-model-len", CONTEXT_TOKENS], {}
