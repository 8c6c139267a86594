"""HTTP as a client: requests and their answers, server-sent events, /metrics."""
import contextlib
import http.client
import io
import json
import socket
import ssl
import time
import typing

from . import prometheus
from .waiting import wait_for

ANSWER_LIMIT_S = 180
READY_LIMIT_S = 120


class Answer(typing.NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket, such as a server has for its operators."""

    def __init__(self, path):
        super().__init__("localhost", timeout=ANSWER_LIMIT_S)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def send(connection, method, path, body=None, headers=()):
    """The answer, of which only the head has come. A body that is no text and no bytes goes as JSON."""
    if body is not None and not isinstance(body, (str, bytes)):
        body = json.dumps(body)
    connection.request(method, path, body, {"Content-Type": "application/json", **dict(headers)})
    return connection.getresponse()


def ask(connection, method, path, body=None, headers=()):
    """The whole answer. Closes the connection."""
    with contextlib.closing(connection):
        reply = send(connection, method, path, body, headers)
        return Answer(reply.status, reply.headers, reply.read().decode())


def events(lines):
    """(id, data) of each server-sent event as it comes, from an answer or a whole text. The data of a
    comment is None. An event that was cut is left out."""
    number, data = None, []
    for raw in io.BytesIO(lines.encode()) if isinstance(lines, str) else lines:
        line = raw.decode()
        if not line.endswith("\n"):
            return
        name, _, value = line.rstrip("\r\n").partition(": ")
        if name == "id":
            number = value
        elif name == "data":
            data.append(value)
        elif not name and not value:
            yield number, "\n".join(data) if data else None
            number, data = None, []


def objects(lines):
    """The objects of a stream until its [DONE]. Raises an AssertionError for an error, and for a stream
    that breaks off."""
    for _, data in events(lines):
        if data == "[DONE]":
            return
        if data is not None:
            event = json.loads(data)
            if "error" in event:
                raise AssertionError(str(event))
            yield event
    raise AssertionError("the stream broke off")


def delta_text(delta):
    """The text that a chunk of a chat adds: of the answer, or of its calls."""
    calls = [call["function"] for call in delta.get("tool_calls", [])]
    return (delta.get("content") or "") + "".join(
        call.get("name", "") + call.get("arguments", "") for call in calls)


class Api:
    """The HTTP API of a server. Any thread may call it; each call has a connection of its own."""
    scheme, host, port, key = "http", "127.0.0.1", None, None
    limit_s = ANSWER_LIMIT_S

    def __init__(self, port):
        self.port = port

    @property
    def url(self):
        return f"{self.scheme}://{self.host}:{self.port}"

    def connection(self):
        """Certificates are not checked."""
        host = self.host.strip("[]")
        if self.scheme == "https":
            return http.client.HTTPSConnection(host, self.port, timeout=self.limit_s,
                                               context=ssl._create_unverified_context())
        return http.client.HTTPConnection(host, self.port, timeout=self.limit_s)

    def connect(self):
        return contextlib.closing(self.connection())

    def headers(self):
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def request(self, method, path, body=None, headers=None):
        """`headers` take the place of those with the key."""
        headers = self.headers() if headers is None else headers
        return ask(self.connection(), method, path, body, headers)

    def get(self, path):
        """Status and text."""
        answer = self.request("GET", path)
        return answer.status, answer.text

    def post(self, path, body):
        answer = self.request("POST", path, body)
        return answer.status, answer.text

    def json(self, path, body=None):
        """The object of an answer that has to be 200."""
        status, text = self.get(path) if body is None else self.post(path, body)
        if status != 200:
            raise AssertionError(f"{path}: {status} {text}")
        return json.loads(text)

    def metrics(self):
        """All samples of /metrics."""
        return prometheus.read(self.get("/metrics")[1])

    def metric(self, name, **labels):
        """The sum of the samples with these labels."""
        return self.metrics().sum(name, **labels)

    def ready(self, path="/ready"):
        try:
            return self.get(path)[0] == 200
        except OSError:
            return False

    def wait_until_ready(self, limit_s=READY_LIMIT_S):
        wait_for(self.ready, f"{self.url} is ready", limit_s)

    def stream(self, request):
        """The text of a streamed completion, or of a streamed chat with the names and arguments of
        its calls, and when the pieces came."""
        chat = "messages" in request
        with self.connect() as connection:
            reply = send(connection, "POST", "/v1/chat/completions" if chat else "/v1/completions",
                         {**request, "stream": True}, self.headers())
            if reply.status != 200:
                raise AssertionError(reply.read().decode())
            text, times = "", []
            for event in objects(reply):
                choice = event["choices"][0]
                text += delta_text(choice["delta"]) if chat else choice["text"]
                times.append(time.monotonic())
            return text, times
