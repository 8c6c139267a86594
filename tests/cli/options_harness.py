"""What options_test.py starts: servers of each kind, their workers, and ways to look at them from
outside."""
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import processes  # noqa: E402

WAIT_LIMIT_S = 60


def run(*words):
    """The exit code and what was written to both streams."""
    done = processes.run(*words, status=None, limit_s=WAIT_LIMIT_S, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def options_in_help(program, command):
    """Each option of `millrace COMMAND --help`, and the default it shows (None: none)."""
    status, text = run(program, command, "--help")
    if status != 0:
        raise AssertionError(text)
    options, name = {}, None
    for line in text[text.index("Usage:"):].splitlines():
        head = re.match(r"  (-\S.*?|MODEL\b.*?)(?:  |$)", line)
        if head:
            names = re.findall(r"--(?:\[no-\])?([a-z][a-z-]*)", head.group(1))
            name = "MODEL" if head.group(1).startswith("MODEL") else "--" + names[-1]
            options[name] = ""
        elif not line.startswith(" " * 10):
            name = None
        if name:
            options[name] += " " + line.strip()
    found = {name: re.search(r"\[default: ([^]]*)\]", text) for name, text in options.items()}
    return {name: default and default.group(1) for name, default in found.items()}


class Running(processes.Server):
    """One start of `serve`, `serve --cluster` or `up`."""
    limit_s = WAIT_LIMIT_S

    def __init__(self, program, kind, folder, words, environment=None):
        self.program, self.kind, self.folder = program, kind, pathlib.Path(folder)
        self.joined = {}  # workers of ours
        environment = {"NO_COLOR": "1", "XDG_RUNTIME_DIR": self.folder,
                       "XDG_CACHE_HOME": self.folder / "cache", **(environment or {})}
        super().__init__(program, kind.split()[0], *words, env=os.environ | {
            name: str(value) for name, value in environment.items()})

    def complete(self, prompt="Once upon a time", **fields):
        return self.json("/v1/completions", {"prompt": prompt, "max_tokens": 4, **fields})

    @property
    def admin_path(self):
        """The line of the log that has it may be below --log-level."""
        return self.folder / "millrace" / f"admin-{self.port}.sock"

    def steps(self):
        """The entries of the step log so far; the last line may still be written."""
        lines = (self.folder / "steps.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def end(self):
        """Kills what is left of it, workers first when it has some of ours."""
        for worker in self.joined.values():
            worker.kill()
        self.kill()


def in_parallel(calls):
    """Starts all of them; the function that is returned waits, and fails where one has failed."""
    failures = []

    def call(function):
        try:
            function()
        except Exception as failure:  # to be raised where it is waited for
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(c,), daemon=True) for c in calls]
    for thread in threads:
        thread.start()

    def join():
        for thread in threads:
            thread.join(WAIT_LIMIT_S)
        for failure in failures:
            raise failure

    return join


SYNC_COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static void count(void) {
  FILE* file = fopen(getenv("SYNC_COUNT_FILE"), "a");
  if (file) { fputc('.', file); fclose(file); }
}
int fdatasync(int fd) {
  count();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
int fsync(int fd) {
  count();
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""


def count_syncs(folder):
    """The environment of a process whose calls of fsync and fdatasync are dots in a file."""
    source, library = folder / "syncs.c", folder / "syncs.so"
    source.write_text(SYNC_COUNTER)
    processes.run("cc", "-shared", "-fPIC", "-o", library, source, "-ldl")
    (folder / "syncs").write_text("")
    return {"LD_PRELOAD": library, "SYNC_COUNT_FILE": folder / "syncs"}


def syncs(folder):
    return (folder / "syncs").stat().st_size
