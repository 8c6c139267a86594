"""A metadata server on loopback that speaks as those of AWS, Google Cloud and Azure document it,
and can misbehave. Its attributes say what holds; any thread may set them."""
import email.utils
import json
import threading
import time
import urllib.parse

from harness.fakes import FakeServer, reset, send

POLL_S = 0.02
AWS_PATHS = {"/latest/meta-data/spot/instance-action": "action",
             "/latest/meta-data/events/recommendations/rebalance": "rebalance",
             "/latest/meta-data/events/maintenance/scheduled": "maintenance"}
GCP_PATHS = {"/computeMetadata/v1/instance/preempted": "preempted",
             "/computeMetadata/v1/instance/maintenance-event": "maintenance_event"}


def rfc3339(seconds_from_now):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds_from_now))


def rfc1123(seconds_from_now):
    return email.utils.formatdate(time.time() + seconds_from_now, usegmt=True)


class FakeMetadata:
    def __init__(self):
        self.action = self.rebalance = ""  # JSON; none: 404
        self.maintenance = "[]"
        self.token_s = 21600
        self.tokens = {}  # until when each is good
        self.preempted, self.maintenance_event = "FALSE", "NONE"
        self.name, self.events, self.started = "vm-1", [], []
        self.trouble = None  # "hang", "reset", "malformed", "huge", or a status
        self.asked = 0
        self.over = threading.Event()
        self.server = FakeServer(self.answer)
        self.url = self.server.url

    def close(self):
        self.over.set()
        self.server.close()

    def add_event(self, number, kind, in_s, resources=("vm-1",)):
        self.events = [*self.events, {
            "EventId": number, "EventStatus": "Scheduled", "EventType": kind,
            "ResourceType": "VirtualMachine", "Resources": list(resources),
            "NotBefore": rfc1123(in_s), "Description": "", "EventSource": "Platform",
            "DurationInSeconds": -1}]

    def answer(self, request, body):
        self.asked += 1
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if self.trouble:
            return self.misbehave(request)
        if url.path == "/latest/api/token" or url.path in AWS_PATHS:
            return self.aws(request, url.path)
        if url.path in GCP_PATHS:
            return self.gcp(request, url.path, query)
        return self.azure(request, url.path, query, body)

    def misbehave(self, request):
        if self.trouble == "hang":
            self.over.wait(60)
        elif self.trouble == "reset":
            reset(request)
        elif self.trouble in ("malformed", "huge"):
            text = '{"Events":[' + ("[" * 4_000_000 if self.trouble == "huge" else "")
            send(request, 200, text, {"Metadata-Flavor": "Google", "ETag": "x"})
        else:
            send(request, self.trouble)

    def aws(self, request, path):
        if path == "/latest/api/token":
            name = "X-aws-ec2-metadata-token-ttl-seconds"
            if request.command != "PUT" or not request.headers.get(name):
                return send(request, 400)
            token = f"token-{len(self.tokens)}"
            self.tokens[token] = time.monotonic() + self.token_s
            return send(request, 200, token, {name: str(self.token_s)})
        token = request.headers.get("X-aws-ec2-metadata-token")
        if self.tokens.get(token, 0) < time.monotonic():
            return send(request, 401)
        text = getattr(self, AWS_PATHS[path])
        return send(request, 200 if text else 404, text)

    def gcp(self, request, path, query):
        if request.headers.get("Metadata-Flavor") != "Google":
            return send(request, 403)
        end = time.monotonic() + float(query.get("timeout_sec", 60))
        waits = query.get("wait_for_change") == "true"
        while (waits and query.get("last_etag") == f"e-{getattr(self, GCP_PATHS[path])}" and
               time.monotonic() < end and not self.over.is_set()):
            time.sleep(POLL_S)
        value = getattr(self, GCP_PATHS[path])
        return send(request, 200, value, {"Metadata-Flavor": "Google", "ETag": f"e-{value}"})

    def azure(self, request, path, query, body):
        if request.headers.get("Metadata") != "true" or "api-version" not in query:
            return send(request, 400)
        if path == "/metadata/instance/compute/name":
            return send(request, 200, self.name)
        if path != "/metadata/scheduledevents":
            return send(request, 404)
        if request.command == "POST":
            for each in json.loads(body)["StartRequests"]:
                self.started.append(each["EventId"])
                self.events = [{**event, "EventStatus": "Started", "NotBefore": ""}
                               if event["EventId"] == each["EventId"] else event
                               for event in self.events]
            return send(request, 200)
        return send(request, 200,
                         json.dumps({"DocumentIncarnation": 1, "Events": self.events}))
