#!/usr/bin/env python3
"""A worker whose model folder is empty takes a dead worker's place with weights from the others, as
real processes: the same answer to the byte, only its layers' bytes on the wire, and another source
when the first one dies midway. Then a plan gives it two layers more: only these travel, and only
these need memory.

Usage: peer_weights.py PROGRAM
"""
import json
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cases import take_paths  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.proc import memory_bytes  # noqa: E402
from harness.processes import Process, Server, make_token, run  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

PROGRAM, = take_paths(1)
LIMIT_S = 120
MIDWAY_BYTES = 20 << 20  # of about 150 MiB
POLL_S = 0.001
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PLAN = """format: 1
model: model
layers: 12
stages:
  - {stage: 0, nodes: [new], layers: [0, 8]}
  - {stage: 1, nodes: [third], layers: [8, 12]}
"""
SPARE_BYTES = 24 << 20  # buffers of the new stage, and of pulls
REQUEST = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def byte_count(line):
    number, unit = re.search(r"([\d.]+) ([KMG]?i?B)\b", line).groups()
    return float(number) * UNITS[unit]


def copied(folder):
    return sum(f.stat().st_blocks * 512 for f in folder.rglob("*.safetensors"))


def anonymous_bytes(command):
    """The memory of a process without what it has mapped from files."""
    return memory_bytes(command.process.pid, "RssAnon")


def check_shift(folder, server, new, third):
    """Layers 0-5 and 6-11 become 0-7 and 8-11."""
    def held_and_counters():
        status = server.status()
        return ({w["name"]: w["weight_bytes"] for w in status["workers"]}, status["counters"])

    plan = folder / "plan.yaml"
    plan.write_text(PLAN)
    held, before = held_and_counters()
    memory = anonymous_bytes(new)
    dropped = anonymous_bytes(third)
    peak = memory
    applying = Process(PROGRAM, "plan", "apply", plan, "--base-url", server.url)

    def applied():
        nonlocal peak
        peak = max(peak, anonymous_bytes(new))
        return applying.process.poll() is not None
    wait_for(applied, "the plan is applied", LIMIT_S, POLL_S)
    if applying.process.returncode != 0:
        raise AssertionError(applying.output)
    now, after = held_and_counters()
    moved = now["new"] - held["new"]
    got = {name: after[name] - before[name]
           for name in ("weights_kept", "weights_from_peers", "weights_from_disk")}
    wanted = {"weights_kept": held["new"] + now["third"], "weights_from_peers": moved,
              "weights_from_disk": 0}
    if got != wanted or moved <= 0:
        raise AssertionError(f"{got} instead of {wanted}")
    fetched = byte_count(new.wait_for("fetched .* of layers 0-7 from other workers"))
    if not moved * 0.99 <= fetched <= moved * 1.02:
        raise AssertionError(f"{fetched} bytes travelled for {moved}")
    if peak - memory > moved * 1.05 + SPARE_BYTES:
        raise AssertionError(f"{peak - memory} bytes of memory were needed for {moved}")
    wait_for(lambda: anonymous_bytes(third) < dropped, "two layers are dropped", LIMIT_S)
    return moved, peak - memory


def check(folder):
    model, empty = folder / "model", folder / "empty"
    run(PROGRAM, "make-model", "--shape", "llama-160m", model)
    empty.mkdir()
    token, port = make_token(PROGRAM, folder), free_port()
    server = Server(
        PROGRAM, "serve", model, "--cluster", f"sqlite:{folder}/state", "--listen",
        f"127.0.0.1:{port}", "--token", token, "--pipeline-parallel-size", "2", "--fixed-layout",
        "--max-model-len", "256")
    workers = {}

    def start(name, model):
        workers[name] = Process(
            PROGRAM, "worker", model, "--join", f"127.0.0.1:{port}", "--token", token,
            "--name", name, "--threads", "1", "--kv-cache-memory", "64MiB", "--max-model-len",
            "256")
        server.wait_for_status(lambda s: any(w["name"] == name for w in s["workers"]))
        return workers[name]

    try:
        # Alone it says why it cannot, and asks again.
        new = start("new", empty)
        new.wait_for(r"no other worker has weights.*start a worker that has the model's files")
        new.kill()
        server.wait_for_status(lambda s: not s["workers"])

        for name in ("first", "second"):
            start(name, model)
        server.wait_until_ready()
        expected = server.post("/v1/completions", REQUEST)[1]
        new = start("new", empty)
        start("third", model)
        workers.pop("first").kill()
        wait_for(lambda: copied(empty) > MIDWAY_BYTES, "it copies", LIMIT_S, POLL_S)
        workers.pop("second").kill()
        fetched = new.wait_for("fetched .* of layers 0-5 from other workers")
        if not new.said("cannot get weights from worker"):
            new.give_up("the source died too late")
        loaded = new.wait_for("layers 0-5 are loaded")
        server.wait_until_ready()
        text = server.post("/v1/completions", REQUEST)[1]
        answers = [json.loads(t)["choices"][0]["text"] for t in (expected, text)]
        if answers[0] != answers[1]:
            raise AssertionError(f"{answers[1]}\ninstead of\n{answers[0]}")
        on_wire, needed = byte_count(fetched), byte_count(loaded)
        whole = (model / "model.safetensors").stat().st_size
        if not needed * 0.99 <= on_wire <= needed * 1.01 or on_wire > 0.6 * whole:
            raise AssertionError(f"{on_wire} bytes travelled, {needed} were needed of {whole}")
        moved, memory = check_shift(folder, server, new, workers["third"])
        shifted = json.loads(server.post("/v1/completions", REQUEST)[1])["choices"][0]["text"]
        if shifted != answers[0]:
            raise AssertionError(f"{shifted}\ninstead of\n{answers[0]}")
        new.stop()
        if list(empty.iterdir()):
            raise AssertionError(f"it left {list(empty.iterdir())}")
        print(f"the same answer; {on_wire / 2**20:.0f} MiB fetched of {whole / 2**20:.0f}, the "
              f"first source killed midway; {moved / 2**20:.0f} MiB for two layers more, with "
              f"{memory / 2**20:.0f} MiB of memory", flush=True)
    except AssertionError:
        for name, worker in workers.items():
            print(f"-- {name}\n{worker.output}", file=sys.stderr)
        print(f"-- server\n{server.output}", file=sys.stderr)
        raise
    finally:
        for worker in workers.values():
            worker.kill()
        server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        check(pathlib.Path(temporary))
