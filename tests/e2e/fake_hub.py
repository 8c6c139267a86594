"""A Hugging Face hub on loopback: its list of files, its redirects to a storage that is another
server, and every way in which both can misbehave. Any thread may set its attributes."""
import hashlib
import json
import pathlib
import struct
import threading
import time
import urllib.parse

from harness.fakes import FakeServer, reset, send

LARGE = (".safetensors", ".bin", ".gguf", ".onnx")  # they lie in the storage
PIECE = 64 << 10


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def files_of(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()
            if path.is_file()}


def in_shards(files):
    """The same model in two files and an index."""
    data = files["model.safetensors"]
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size:]
    files = {name: text for name, text in files.items() if name != "model.safetensors"}
    weight_map = {}
    for shard in range(2):
        name, made, parts = f"model-0000{shard + 1}-of-00002.safetensors", {}, b""
        for tensor in sorted(header)[shard::2]:
            begin, end = header[tensor]["data_offsets"]
            made[tensor] = {**header[tensor],
                            "data_offsets": [len(parts), len(parts) + end - begin]}
            parts += body[begin:end]
            weight_map[tensor] = name
        text = json.dumps(made).encode()
        text += b" " * (-len(text) % 8)
        files[name] = struct.pack("<Q", len(text)) + text + parts
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


class Request:
    def __init__(self, server, handler):
        self.server, self.method, self.path = server, handler.command, handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}


class FakeHub:
    """`repositories`: ORG/NAME -> revision -> file -> bytes. `troubles`: file -> what goes wrong
    with its next downloads, one after the other; "list" is the list of files. A trouble is a tuple:
      ("cut", BYTES)            the connection is reset after so many
      ("status", CODE, HEADERS) this answer instead
      ("slow", BYTES)           so many, then a byte now and then
      ("pace", SECONDS)         a pause after each piece
      ("other",)                other bytes of the same length
      ("whole",)                Range is ignored
      ("etag", ETAG)            a resumed download is of another file
      ("more",)                 endless, without a length
      ("short", BYTES)          so many, and the connection ends as if that were all
      ("redirect", URL)"""

    def __init__(self, certificate=None):
        self.repositories, self.troubles, self.requests = {}, {}, []
        self.lock = threading.Lock()
        self.token = None     # if set, needed
        self.refusal = "RepoNotFound"
        self.digests = True   # the list has sizes and digests
        self.listing = None   # instead of the list
        self.sizes = {}       # of files, as the list says them
        self.hub, self.storage = (self.serve(*each, certificate) for each in (
            ("hub", self.answer_hub), ("storage", self.answer_storage)))
        self.url = self.hub.url

    def serve(self, name, answer, certificate):
        def remember_and_answer(handler, _):
            with self.lock:
                self.requests.append(Request(name, handler))
            answer(handler)
        return FakeServer(remember_and_answer, certificate)

    def close(self):
        self.hub.close()
        self.storage.close()

    def commit(self, repository, revision):
        """The commit that a revision names, or None."""
        versions = self.repositories.get(repository, {})
        for name, files in versions.items():
            commit = hashlib.sha1(repr(sorted((n, sha256(d)) for n, d in files.items()))
                                  .encode()).hexdigest()
            if revision in (name, commit):
                return commit
        return None

    def files(self, repository, commit):
        return next(files for name, files in self.repositories[repository].items()
                    if self.commit(repository, name) == commit)

    def downloads(self, name, server=None):
        """The requests for the bytes of a file."""
        with self.lock:
            return [r for r in self.requests if r.method == "GET" and
                    urllib.parse.urlsplit(r.path).path.endswith("/" + name) and
                    (server is None or r.server == server)]

    def trouble(self, name, handler):
        if handler.command != "GET":
            return None
        with self.lock:
            queue = self.troubles.get(name, [])
            return queue.pop(0) if queue else None

    def answer_hub(self, handler):
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return send(handler, 401 if self.refusal == "RepoNotFound" else 403, b"no",
                             {"X-Error-Code": self.refusal, "X-Error-Message": "Access denied"})
        path = urllib.parse.urlsplit(handler.path).path
        parts = [urllib.parse.unquote(part) for part in path.split("/")[1:]]
        if parts[:2] == ["api", "models"] and parts[4:5] == ["revision"]:
            return self.send_list(handler, "/".join(parts[2:4]), parts[5])
        if parts[:2] == ["api", "models"] and parts[4:5] == ["tree"]:
            return self.send_tree(handler, "/".join(parts[2:4]), parts[5])
        if parts[2:3] == ["resolve"]:
            return self.send_file(handler, "/".join(parts[:2]), parts[3], parts[4])
        return send(handler, 404, b"")

    def send_list(self, handler, repository, revision):
        trouble = self.trouble("list", handler)
        if trouble:
            return self.misbehave(handler, trouble, b"{}", {})
        if self.listing is not None:
            return send(handler, 200, self.listing)
        commit = self.commit(repository, revision)
        if commit is None:
            code = "RevisionNotFound" if repository in self.repositories else "RepoNotFound"
            return send(handler, 404, b"{}", {"X-Error-Code": code})
        siblings = []
        for name, data in self.files(repository, commit).items():
            entry = {"rfilename": name}
            size = self.sizes.get(name, len(data))
            if self.digests:
                entry |= {"size": size, "blobId": git_blob(data)}
                if name.endswith(LARGE):
                    entry["lfs"] = {"sha256": sha256(data), "size": size, "pointerSize": 134}
            siblings.append(entry)
        return send(handler, 200,
                         json.dumps({"id": repository, "sha": commit, "siblings": siblings})
                         .encode())

    def send_tree(self, handler, repository, revision):
        """The same for the hub's own library."""
        entries = []
        for name, data in self.files(repository, self.commit(repository, revision)).items():
            entry = {"type": "file", "path": name, "size": len(data), "oid": git_blob(data)}
            if name.endswith(LARGE):
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        return send(handler, 200, json.dumps(entries).encode())

    def send_file(self, handler, repository, commit, name):
        data = self.files(repository, commit).get(name)
        if data is None:
            return send(handler, 404, b"", {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": commit}
        if name.endswith(LARGE):
            query = urllib.parse.urlencode({"X-Signature": "secret-of-" + name})
            headers |= {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data)),
                        "Location": f"{self.storage.url}/{repository}/{commit}/{name}?{query}"}
            with self.lock:
                first = (self.troubles.get(name) or [(None,)])[0]
                if first[0] == "redirect" and handler.command == "GET":
                    headers["Location"] = self.troubles[name].pop(0)[1]
                if first[0] == "etag" and handler.headers.get("Range"):
                    headers["X-Linked-Etag"] = f'"{self.troubles[name].pop(0)[1]}"'
            return send(handler, 302, b"", headers)
        headers["ETag"] = f'"{git_blob(data)}"'
        return self.send_bytes(handler, name, data, headers)

    def answer_storage(self, handler):
        path = urllib.parse.urlsplit(handler.path).path
        _, org, model, commit, name = path.split("/")
        self.send_bytes(handler, name, self.files(f"{org}/{model}", commit)[name],
                        {"ETag": '"of-the-storage"'})

    def send_bytes(self, handler, name, data, headers):
        trouble = self.trouble(name, handler)
        asked = handler.headers.get("Range")
        code = 200
        if asked and (trouble or [""])[0] != "whole":
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(data):
                return send(handler, 416, b"")
            headers |= {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"}
            code, data = 206, data[begin:]
        if trouble and trouble[0] not in ("whole", "etag"):
            return self.misbehave(handler, trouble, data, headers, code)
        return send(handler, code, data, headers)

    def misbehave(self, handler, trouble, data, headers, code=200):
        what = trouble[0]
        if what == "status":
            return send(handler, trouble[1], b"trouble", dict(trouble[2:] and trouble[2]))
        if what == "other":
            return send(handler, code, bytes(len(data)), headers)
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        if what in ("more", "short"):
            handler.send_header("Connection", "close")
            handler.close_connection = True
        else:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if what == "more":
            while True:
                handler.wfile.write(bytes(PIECE))
        if what == "pace":
            for at in range(0, len(data), PIECE):
                handler.wfile.write(data[at:at + PIECE])
                time.sleep(trouble[1])
            return None
        handler.wfile.write(data[:trouble[1]])
        if what == "slow":
            for byte in data[trouble[1]:]:
                time.sleep(0.2)
                handler.wfile.write(bytes([byte]))
        if what == "cut":
            handler.wfile.flush()
            time.sleep(0.3)  # what was sent arrives before the reset
            reset(handler)
        return None
