"""What all peers have in common: folders, install steps with progress, servers on free ports."""
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from harness import ports, processes  # noqa: E402
from harness.http import Api  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PROGRESS_EVERY_S = 15
READY_WITHIN_S = 600  # vLLM compiles its model at the first start
STOP_WITHIN_S = 30


class PeerError(Exception):
    """A peer cannot be installed or served. The text has the cause and the cure."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One run: where things are and what is served."""
    root: pathlib.Path    # everything that is installed, made or logged
    binary: pathlib.Path  # of Millrace
    shape: str
    threads: int

    @property
    def models(self):
        return self.root / "models" / self.shape

    @property
    def hf_model(self):
        return self.models / "hf"

    def log(self, name):
        (self.root / "logs").mkdir(parents=True, exist_ok=True)
        return self.root / "logs" / f"{name}.log"


class Peer:
    """A server to compare with. Subclasses pin it, install it, and say how it is started."""
    name = ""     # in options and file names
    title = ""    # in the table
    version = ""  # in the table
    ready_path = "/health"

    def install(self, setting):
        """Installs into setting.root; does nothing where that is done already."""

    def convert(self, setting):
        """Makes the model's files in the peer's own format."""

    def command(self, setting, port):
        """The server's command line and the environment variables that it adds."""
        raise NotImplementedError


def say(text):
    print(text, file=sys.stderr, flush=True)


def shown(path):
    """A path as a reader of the table can use it: from where the command was run."""
    return os.path.relpath(path)


def last_line(path, begin=0):
    """Of what a log has from a byte on."""
    with open(path, "rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace").strip().split("\n")[-1].strip()


def run_step(what, command, log, cure, env=None, cwd=None):
    """Runs a command with its output in a log; says every now and then that it still runs."""
    say(f"==> {what}")
    started = last = time.monotonic()
    with open(log, "a") as output:
        begin = output.tell()
        try:
            process = subprocess.Popen([str(word) for word in command], stdout=output, cwd=cwd,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env={**os.environ, **(env or {})})
        except OSError as error:
            raise PeerError(f"{what} failed: {error}. {cure}") from error
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
                break
            if time.monotonic() - last >= PROGRESS_EVERY_S:
                last = time.monotonic()
                say(f"    {last - started:.0f} s: {last_line(log, begin)[:100]}")
    if process.returncode != 0:
        raise PeerError(f"{what} failed (exit status {process.returncode}): "
                        f"{last_line(log, begin)[:200]}. {cure} All of its output is in {shown(log)}.")


def make_environment(folder, requirements, log, options=()):
    """A virtual environment, and exactly the packages of a file without what they ask for."""
    run_step(f"making an environment for {requirements.name}",
             [sys.executable, "-m", "venv", folder], log,
             "Python's venv module is needed (Debian: python3-venv).")
    run_step(f"installing {requirements.name}",
             [folder / "bin/pip", "install", "--disable-pip-version-check", "--no-deps",
              "--only-binary", ":all:", *options, "-r", requirements], log,
             "Is the package index reachable, and does it have these versions for this Python?")


@contextlib.contextmanager
def fresh_folder(folder, pins):
    """Yields an empty folder to install into, or None where the same pins are installed.

    What is converted for a peer is kept in its folder, so that it is made anew with it. The stamp comes last, so that a step that failed is tried again the next time.
    """
    digest = hashlib.sha256((sys.version + pins).encode()).hexdigest()
    stamp = folder / "installed"
    if stamp.is_file() and stamp.read_text() == digest:
        yield None
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    stamp.write_text(digest)


def requirements(name):
    return HERE / "requirements" / f"{name}.txt"


def pinned(path, package):
    """The version of a package in a requirements file."""
    for line in pathlib.Path(path).read_text().splitlines():
        found, _, version = line.partition("==")
        if found.strip().lower() == package:
            return version.strip()
    raise ValueError(f"{path} does not pin {package}")


class Server(processes.Process, Api):
    """A peer's server on a free port of the loopback interface. Leaves nothing running."""
    limit_s = 5  # of a question whether it is ready

    def __init__(self, peer, setting):
        self.peer, self.port = peer, ports.free_port()
        self.path = setting.log(f"{peer.name}-server")
        self.path.unlink(missing_ok=True)
        command, env = peer.command(setting, self.port)
        # A session of its own: some servers start further processes, which end with it.
        super().__init__(*command, log=self.path, stdin=subprocess.DEVNULL, start_new_session=True,
                         env=os.environ | {key: str(value) for key, value in env.items()})

    def __enter__(self):
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _wait_ready(self):
        started = last = time.monotonic()

        def ready():
            nonlocal last
            if self.process.poll() is not None:
                raise PeerError(f"its server ended at the start with {self.process.returncode}: "
                                f"{last_line(self.path)[:200]}. All it wrote is in {shown(self.path)}.")
            if time.monotonic() - last >= PROGRESS_EVERY_S:
                last = time.monotonic()
                say(f"    {self.peer.title} starts: {last - started:.0f} s")
            return self.ready(self.peer.ready_path)
        try:
            wait_for(ready, "ready", READY_WITHIN_S, 0.1)
        except AssertionError as error:
            raise PeerError(f"its server was not ready within {READY_WITHIN_S} s; see "
                            f"{shown(self.path)}") from error

    def stop(self):
        self.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=STOP_WITHIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
