"""Commands as processes: those that go on and what they say, those that serve, those that end. What still
runs when the script ends is killed."""
import atexit
import io
import json
import os
import re
import signal
import subprocess
import tempfile
import weakref

from . import proc
from .http import Api, UnixConnection, ask
from .waiting import wait_for

# Workers that measure take the processor from what a test times, and write to the user's cache.
os.environ.setdefault("MILLRACE_MEASURE_PROFILE", "false")
os.environ.setdefault("MILLRACE_WEIGHT_CACHE", "false")  # nothing is left in the user's cache

START_LIMIT_S = 120
STOP_LIMIT_S = 60
SETTLE_LIMIT_S = 120
SERVING = r"Serving .* on (https?)://(\[[^]]*\]|[^:/\s]+):(\d+)"
started = set()


@atexit.register
def kill_what_is_left():
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def run(*words, status=0, limit_s=START_LIMIT_S, **more):
    """A command that ends by itself, with what it wrote. `status`: how it has to end; None: anyhow."""
    words = [str(word) for word in words]
    done = subprocess.run(words, text=True, capture_output=True, timeout=limit_s, check=False, **more)
    if status not in (None, done.returncode):
        raise AssertionError(f"{words} left with {done.returncode}: {done.stdout}{done.stderr}")
    return done


def make_token(program, folder):
    """The file of a cluster's secret."""
    run(program, "token", "--out", f"{folder}/cluster.token")
    return f"{folder}/cluster.token"


class Process:
    """A command and what it says. Both its streams go to a file: `log`, or one without a name."""

    def __init__(self, *words, log=None, **more):
        if log:
            self.log = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        else:
            self.log, path = tempfile.mkstemp()
            os.unlink(path)
        weakref.finalize(self, os.close, self.log)
        self.process = subprocess.Popen([str(word) for word in words], stdout=self.log,
                                        stderr=subprocess.STDOUT, **more)
        started.add(self.process)

    @property
    def output(self):
        """What it has said so far, in whole lines."""
        ended = self.process.poll() is not None
        text = os.pread(self.log, os.fstat(self.log).st_size, 0).decode(errors="replace")
        return text if ended else text[:text.rfind("\n") + 1]

    @property
    def lines(self):
        return list(io.StringIO(self.output, newline=None))

    def said(self, pattern):
        return [line for line in self.lines if re.search(pattern, line)]

    def give_up(self, why):
        raise AssertionError(f"{why}:\n{self.output}")

    def wait_for(self, pattern, limit_s=START_LIMIT_S):
        """The first line that says so."""
        def found():
            ended = self.process.poll() is not None
            return self.said(pattern) or (ended and self.give_up(f"never said {pattern}"))
        return wait_for(found, lambda: f"{pattern}:\n{self.output}", limit_s, 0.02)[0]

    @property
    def admin_path(self):
        """The socket of one that serves."""
        return re.search(r"on the unix socket ([^\s\"]+)",
                         self.wait_for("on the unix socket")).group(1)

    def admin(self, method, path, body=None):
        """Status and text of an admin route's answer."""
        answer = ask(UnixConnection(self.admin_path), method, path, body)
        return answer.status, answer.text

    def status(self):
        """Of the cluster."""
        return json.loads(self.admin("GET", "/cluster/status")[1])

    def send_signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self, number=signal.SIGTERM):
        """Its exit status. It is killed when it does not end in time."""
        self.send_signal(number)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.process.returncode


class Server(Process, Api):
    """A `millrace` that serves, from its construction on."""

    def __init__(self, *words, **more):
        port = () if "--port" in words else ("--port", 0)
        Process.__init__(self, *words, *port, **more)
        try:
            found = re.search(SERVING, self.wait_for(SERVING))
        except BaseException:
            self.kill()
            raise
        self.scheme, self.host, self.port = found[1], found[2], int(found[3])

    def wait_until_ready(self):
        wait_for(lambda: self.ready() or (self.process.poll() is not None and
                                          self.give_up("it ended before it was ready")),
                 lambda: f"it is ready:\n{self.output}", START_LIMIT_S)

    def wait_for_status(self, wanted, limit_s=SETTLE_LIMIT_S):
        """A status of the cluster that is as wanted."""
        status = None

        def found():
            nonlocal status
            status = self.status()
            return wanted(status) and status
        return wait_for(found, lambda: json.dumps(status), limit_s)

    def workers(self):
        """The ids of its workers' processes by name."""
        return proc.workers_of(self.process.pid)

    def stop(self, number=signal.SIGTERM):
        """Its exit status. It has to end in time."""
        if self.process.poll() is not None:
            return self.process.returncode
        status = super().stop(number)
        if status == -signal.SIGKILL and number != signal.SIGKILL:
            self.give_up(f"killed, for it did not end within {STOP_LIMIT_S} s")
        return status
