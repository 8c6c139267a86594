"""The API server of Kubernetes as far as a fleet needs it: the `scale` subresource of StatefulSets,
with a token, optimistic locking, errors and slow answers. Pods are started and stopped by the
caller's functions; a pod that ends by itself is started again, as a kubelet does."""
import json
import re
import threading
import time

from harness.fakes import FakeServer, send

TOKEN = "a-service-account-token"
PATH = re.compile(r"/apis/apps/v1/namespaces/([^/]+)/statefulsets/([^/]+)/scale")


class FakeKubernetes:
    """`start(name)` returns a process; `stop(process)` ends it as a kubelet would."""

    def __init__(self, sets, start, stop):
        self.replicas = dict(sets)  # by "namespace/name"
        self.version = {name: 1 for name in sets}
        self.start, self.stop = start, stop
        self.pods = {}  # by name
        self.lock = threading.RLock()
        self.refuse = 0        # the next so many answers are 403
        self.conflicts = 0     # the next so many changes come too late
        self.delay_s = 0.0     # before each answer
        self.garbage = 0       # the next so many answers are no JSON
        self.patches, self.restarts = [], 0
        self.over = threading.Event()
        self.server = FakeServer(self.answer)
        self.url = self.server.url
        threading.Thread(target=self.keep, daemon=True).start()

    def answer(self, handler, body):
        time.sleep(self.delay_s)
        with self.lock:
            status, found = self.look(handler, json.loads(body) if handler.command == "PATCH" else None)
        send(handler, status, found if isinstance(found, str) else json.dumps(found),
             {"Content-Type": "application/json"})

    @staticmethod
    def failure(status, reason, message):
        return status, {"kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "message": message, "reason": reason, "code": status}

    def look(self, handler, patch):
        if handler.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.failure(401, "Unauthorized", "Unauthorized")
        if self.refuse > 0:
            self.refuse -= 1
            return self.failure(403, "Forbidden", "statefulsets/scale is forbidden")
        if self.garbage > 0:
            self.garbage -= 1
            return 200, "<html>"
        found = PATH.fullmatch(handler.path)
        name = "/".join(found.groups()) if found else ""
        if name not in self.replicas:
            return self.failure(404, "NotFound", f'statefulsets.apps "{name}" not found')
        if patch is not None:
            if handler.headers["Content-Type"] != "application/merge-patch+json":
                return self.failure(415, "UnsupportedMediaType", "not a merge patch")
            if self.conflicts > 0:
                self.conflicts -= 1
                self.version[name] += 1
            if patch["metadata"]["resourceVersion"] != str(self.version[name]):
                return self.failure(409, "Conflict", "the object has been modified")
            self.patches.append(patch["spec"]["replicas"])
            self.replicas[name] = patch["spec"]["replicas"]
            self.version[name] += 1
        spec = {"replicas": self.replicas[name]} if self.replicas[name] > 0 else {}
        space, short = name.split("/")
        return 200, {"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": spec,
                     "metadata": {"name": short, "namespace": space,
                                  "resourceVersion": str(self.version[name])},
                     "status": {"replicas": self.replicas[name]}}

    def keep(self):
        """What the controller of StatefulSets and the kubelets do."""
        while not self.over.wait(0.2):
            with self.lock:
                wanted = {f"{name.split('/')[1]}-{i}" for name, count in self.replicas.items()
                          for i in range(count)}
                gone = [name for name in self.pods if name not in wanted]
                stopped = [self.pods.pop(name) for name in gone]
                for name in wanted:
                    if name not in self.pods:
                        self.pods[name] = self.start(name)
                    elif self.pods[name].process.poll() is not None:
                        self.restarts += 1
                        self.pods[name] = self.start(name)
            for pod in stopped:
                threading.Thread(target=self.stop, args=(pod,), daemon=True).start()

    def close(self):
        self.over.set()
        self.server.close()
        with self.lock:
            for pod in self.pods.values():
                self.stop(pod)
