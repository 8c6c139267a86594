"""How the effect of each option is seen from outside the process: an answer over HTTP, /metrics,
/cluster/status, a file, what is printed, a port, the exit code. Each function takes the running
server and what the option was given, and fails when it sees no effect."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import time

from options_harness import in_parallel, run, syncs

from harness.http import Api
from harness.proc import threads_of
from harness.waiting import wait_for

LONG = {"max_tokens": 400, "ignore_eos": True}
KV_BYTES_PER_TOKEN = 2048  # of the demo model
LAYERS = 4
SETTLED_S = 4  # longer than it takes to lay out lost layers over other workers
firsts = {}  # the seed of the first request, by --seed


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def same(got, wanted):
    check(got == wanted, f"{got!r} is not {wanted!r}")


def refuses_connections(host, port):
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(5)
        return probe.connect_ex((host, port)) != 0


# ---- the HTTP front end

def host(server, value):
    same(server.host, value)
    check(refuses_connections("127.0.0.1", server.port), "it listens on 127.0.0.1 as well")


def port(server, value):
    same(server.port, int(value))


def root_path(server, value):
    same(server.json(value + "/v1/models"), server.json("/v1/models"))
    same(server.json(value + "//openapi.json/")["servers"], [{"url": value}])


def names(server, *values):
    same([m["id"] for m in server.json("/v1/models")["data"]], list(values))


def model(server, value):
    same(server.status()["model"], os.path.basename(str(value)))


def api_key(server, value):
    same(server.request("GET", "/v1/models", headers={})[0], 401)
    same(server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {value}"})[0], 200)


def api_key_file(server, value):
    """It is read again by tests/cli/reload_test.py."""
    api_key(server, pathlib.Path(value).read_text().splitlines()[-1])


def admin_listen(server, value):
    """It answers with the certificate of the main port, and not without a key."""
    host_name, number = value.rsplit(":", 1)
    same(ask_admin(host_name, int(number), {}), 401)
    server.admin_address = host_name, int(number)


def admin_key(server, value):
    same(ask_admin(*server.admin_address, {"Authorization": "Bearer another"}), 401)
    same(ask_admin(*server.admin_address, {"Authorization": f"Bearer {value}"}), 200)


def ask_admin(host_name, number, headers):
    api = Api(number)
    api.scheme, api.host = "https", host_name
    return api.request("GET", "/cluster/status", headers=headers).status


def origins(server, value):
    def allowed(origin):
        headers = {**server.headers(), "Origin": origin}
        return server.request("GET", "/v1/models", headers=headers)[1].get(
            "Access-Control-Allow-Origin")
    same(allowed(value), value)
    same(allowed("https://other.example"), None)


def certificate(server, value):
    shown = ssl.get_server_certificate((server.host, server.port))
    same(shown.split(), value.read_text().split())


def closes_idle(server, _):
    begun = time.monotonic()
    with server.connect() as connection:
        connection.request("GET", "/live", headers=server.headers())
        connection.getresponse().read()
        connection.sock.settimeout(20)
        same(connection.sock.recv(1), b"")
    check(1 < time.monotonic() - begun < 15, "it was closed after --keep-alive-timeout")


def aborts_what_runs(server, _):
    """The last check of its server: it ends."""
    in_parallel([lambda: server.request(
        "POST", "/v1/completions", {"prompt": "Once", "n": 100, **LONG})])
    wait_for(lambda: server.metric("vllm:num_requests_running") > 0, "it runs")
    begun = time.monotonic()
    server.send_signal(signal.SIGTERM)
    wait_for(lambda: server.request("GET", "/ready")[0] == 503, "it is not ready any more")
    server.complete()  # within --drain-delay
    same(server.process.wait(30), 0)
    check(1.5 < time.monotonic() - begun < 12, "it took --drain-delay, and waited for what ran")
    wait_for(lambda: server.said("aborted after --shutdown-timeout"), "it says so")


def judges(server, *_):
    """A limit that no request can keep, and one that each keeps."""
    before = server.metric("millrace_slo_requests_total")
    server.complete()
    wait_for(lambda: server.metric("millrace_slo_requests_total") == before + 1, "it is judged")
    same(server.metric("millrace_slo_requests_kept_total"), 0)
    same(server.metric("millrace_slo_attainment_target"), 0.75)


def refuses_early(server, _):
    """With a limit that no request can keep, as soon as the rate is measured."""
    asked = {"prompt": [60 + i % 100 for i in range(100)], "max_tokens": 1}

    def refused():
        status, headers, _ = server.request("POST", "/v1/completions", asked)
        if status == 200:
            return False
        same((status, headers["Retry-After"]), (429, "1"))
        return True

    wait_for(refused, "it is refused")


def log_level(server, _):
    """Given "warning": no process writes anything less severe."""
    same([line for line in server.lines if re.search(r"^(\S+: )?[\d:.]+ info ", line)], [])


def log_format(process, _):
    """Given "json": each line is an object, of the workers as well."""
    lines = [json.loads(line) for line in process.lines if line.startswith("{")]
    check(lines and all({"time", "level", "message"} <= set(line) for line in lines), lines)
    text = r"^(\S+: )?([\d:.]+ (info|warning|error) |Loading)"
    same([line for line in process.lines if re.search(text, line)], [])
    if getattr(process, "kind", "") == "up":
        check({"worker-0", "worker-1"} <= {line.get("process") for line in lines}, lines)


def spans(server, _):
    """Without a collector they are dropped, which is counted."""
    server.complete()
    wait_for(lambda: server.metric("millrace_spans_dropped_total") > 0, "spans are dropped")


# ---- the scheduler and its memory

def context(server, value):
    same(server.json("/v1/models")["data"][0]["max_model_len"], int(value))


def block_size(server, value):
    check(f'block_size="{value}"' in server.request("GET", "/metrics")[2], "no such label")
    same(server.steps()[0]["options"]["block_size"], int(value))


def blocks(server, value):
    same(server.metric("millrace_kv_blocks"), int(value))
    same([p["blocks_total"] for p in server.status()["pipelines"]], [int(value)])


def kv_memory(server, value):
    """Of a pipeline of one stage, or of equal ones that share it."""
    tokens = int(value.removesuffix("MiB")) * 2**20 // KV_BYTES_PER_TOKEN
    same([p["blocks_total"] for p in server.status()["pipelines"]], [tokens // 16])


def batches(server):
    """The tokens of each sequence of each step."""
    return [[part[2] for part in step["parts"]] for step in server.steps() if "parts" in step]


def sequences(server, value):
    server.complete(n=8, max_tokens=20, ignore_eos=True)
    check(max(map(len, batches(server))) <= int(value), "steps have more sequences")


def batched_tokens(server, value):
    server.complete(prompt=[7] * 150)
    same(max(map(sum, batches(server))), int(value))


def waiting_limit(server, value):
    status, text = server.post("/v1/completions", {"prompt": [[7]] * 100, "max_tokens": 40})
    same(status, 429)
    check(f"the limit is {value}" in text, text)


def no_prefix_caching(server, _):
    answers = [server.complete(prompt=[9] * 100) for _ in range(2)]
    details = answers[1]["usage"].get("prompt_tokens_details") or {}
    check(not details.get("cached_tokens"), f"a prefix was found: {answers[1]}")


def evicts_by(server, value):
    same(server.steps()[0]["options"]["prefix_eviction"], value)


def priority(server, _):
    """Of two that wait, the one that came later and is more important ends first. Several stages
    have several steps under way, and room for both: there the log's header has to do."""
    same(server.steps()[0]["options"]["policy"], 1)
    if server.steps()[0]["options"]["stages"] > 1:
        return
    ended = []

    def ask(number):
        # The first place is free 100 steps before the next, so the two end far apart in any order.
        server.complete(prompt=[100 + number], priority=number, ignore_eos=True,
                        max_tokens=4 if number < 0 else 60)
        ended.append(number)

    joins = [in_parallel([lambda n=n: server.complete(max_tokens=n, ignore_eos=True)
                          for n in (150, 250, 350)])]
    wait_for(lambda: server.metric("vllm:num_requests_running") == 3, "all places are taken")
    for number in (9, -9):
        joins.append(in_parallel([lambda n=number: ask(n)]))
        wait_for(lambda n=number: [e for e in server.steps() if e.get("prompt") == [100 + n]],
                   "it is accepted")
    for join in joins:
        join()
    same(ended, [-9, 9])


def seed(server, value):
    """The same at each start that is given the same; drawn otherwise."""
    first = next(entry for entry in server.steps() if "add" in entry)["seed"]
    same(firsts.setdefault(value, first), first)


def step_log(server, value):
    """A log of one stage is replayed; each line says whose it is."""
    steps = server.steps()
    check({"options", "costs"} <= steps[0].keys(), "the first line is no header")
    check(all("pipeline" in entry for entry in steps), "a line names no pipeline")
    status, text = run(server.program, "simulate", "--replay", value, "--json")
    if steps[0]["options"]["stages"] == 1:
        same((status, json.loads(text)["same"]), (0, True))
    else:
        check("only one can be replayed" in text, text)


def reserves_whole_context(server, _):
    """`orca-max` keeps room for the longest answer, so that few requests run together."""
    join = in_parallel([lambda: server.complete(**LONG) for _ in range(3)])

    def waits():
        return all(server.metric("vllm:num_requests_waiting") > 0 and
                   server.metric("vllm:num_requests_running") > 0 for _ in range(3))

    wait_for(waits, "requests wait while others run")
    join()
    same(server.steps()[0]["options"]["kv_policy"], 2)


def swaps(server, _):
    """More than the KV cache holds, so that sequences give way."""
    in_parallel([lambda i=i: server.complete(prompt=[20 + i] * 20, max_tokens=180, ignore_eos=True)
                 for i in range(6)])()
    check(server.metric('millrace_swapped_out_blocks_total') > 0, "nothing was swapped out")


def swap_space(server, value):
    wanted = int(float(value) * 2**30 / (16 * KV_BYTES_PER_TOKEN))
    check(f'num_cpu_blocks="{wanted}"' in server.request("GET", "/metrics")[2], f"not {wanted}")


def threads(server, value):
    for worker in server.status()["workers"]:
        check(worker["device"].endswith(f" x{value}"), worker["device"])


def kernels(server, value):
    for worker in server.status()["workers"]:
        check(value in worker["device"].split(), worker["device"])


def populates(server, _):
    """No thread has KV memory ready ahead of need. cluster_faults.py sees it where it is not off."""
    for pid in server.workers().values() or [server.process.pid]:
        check("kv-populate" not in threads_of(pid), "memory is populated")


def worker_populates(worker, _):
    check("kv-populate" not in threads_of(worker.process.pid), "memory is populated")


def weight_cache_of(pid):
    environment = pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0")
    home = next(v for v in environment if v.startswith("XDG_CACHE_HOME=")).partition("=")[2]
    return pathlib.Path(home) / "millrace" / "weights"


def no_weight_cache(server, _):
    """Nothing is kept. test_weights_are_read_once sees what is kept without it."""
    for pid in [server.process.pid, *server.workers().values()]:
        check(not weight_cache_of(pid).exists(), "digests are kept")


def worker_no_weight_cache(worker):
    check(not weight_cache_of(worker.process.pid).exists(), "digests are kept")


def bound_memory(pid, value):
    """All of the process's memory is bound to that node."""
    maps = pathlib.Path(f"/proc/{pid}/numa_maps").read_text()
    check(f" bind:{value} " in maps, maps[:500])


def numa_node(server, value):
    workers = server.workers().values()
    for pid in workers or [server.process.pid]:
        bound_memory(pid, value)


# ---- the cluster

def layers(server):
    """By worker, for those that hold some."""
    return {w["name"]: w["layers"] for w in server.status()["workers"] if w["layers"]}


def worker_count(server, value):
    same(len(server.status()["workers"]), int(value))
    same(len(server.workers()), int(value))


def stages(server, value):
    same(len({json.dumps(held) for held in layers(server).values()}), int(value))


def pipelines(role, server, value):
    wait_for(lambda: sum(p["role"] == role for p in server.status()["pipelines"]) == int(value),
               f"{value} {role} pipelines")


def ranks(server, value):
    same([w["ranks"] for w in server.status()["workers"]], [int(value)] * int(value))


def plan(server, _):
    same(sorted(layers(server).values()), [[[0, LAYERS]], [[0, LAYERS]]])


def dispatch(server, _):
    """Given "predicted": nothing is ahead of a request that is alone, so it goes to the first
    replica. By the plan's flow they would take turns."""
    before = len(server.steps())
    for number in range(3):
        server.complete(prompt=[60 + number] * 20)
    added = [entry["pipeline"] for entry in server.steps()[before:] if "add" in entry]
    same((len(added), len(set(added))), (3, 1))


def cross_class_replay(server, _):
    """What it does is in tests/e2e/cluster_classes.py."""
    same(server.status()["cross_class_replay"], True)


def autopilot(setting, value, server, _):
    """What it does is in tests/e2e/autopilot.py and cluster/autopilot."""
    same(server.status()["autopilot"][setting], value)


def fleet(server, _):
    """What it does is in tests/e2e/fleet.py and cluster/fleet."""
    same([k["name"] for k in server.status()["fleet"]["kinds"]], ["rack"])


def stays_laid_out(server, _):
    """The last check of its server: a worker is stopped."""
    before = layers(server)
    lost = next(name for name, held in before.items() if held[0][0] > 0)
    pids = {name: worker.process.pid for name, worker in server.joined.items()}
    pid = (pids or server.workers())[lost]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: server.status()["missing"], "the worker is given up")
        end = time.monotonic() + SETTLED_S
        while time.monotonic() < end:
            now = layers(server)
            check(all(now[name] == before[name] for name in now), f"{before} became {now}")
            check(server.status()["missing"], "others took the layers")
            time.sleep(0.2)
    finally:
        os.kill(pid, signal.SIGKILL)


def journal(server, value):
    server.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 4, "stream": True})
    check(any(file.stat().st_size > 0 for file in value.iterdir()), "the folder is empty")


def journal_sync(server, _):
    """Without it nothing is synced. One sync covers all tokens since the one before, so a slow disk
    makes few of them."""
    before = syncs(server.folder)
    server.request("POST", "/v1/completions",
                   {"prompt": "x", "max_tokens": 60, "ignore_eos": True, "stream": True})
    check(syncs(server.folder) - before >= 2, f"{syncs(server.folder) - before} syncs")


def store(server, value):
    folder = server.folder / value.removeprefix("sqlite:").rsplit("/", 1)[1]
    check(any(file.suffix in (".db", ".sqlite", ".sqlite3") or file.stat().st_size > 4000
              for file in folder.iterdir()), f"{list(folder.iterdir())}")


def workers_join(server, value):
    same({w["address"].rsplit(":", 1)[0] for w in server.status()["workers"]}, {"127.0.0.1"})
    check(not refuses_connections("127.0.0.1", int(value.rsplit(":", 1)[1])), "nothing listens there")


def token(server, value):
    """A worker with another one is sent away."""
    other = server.folder / "other.token"
    run(server.program, "token", "--out", other)
    check(other.read_text() != value.read_text(), "one token")
    status, text = run(server.program, "worker", server.model, "--join", server.joins, "--token",
                       other, "--name", "stranger", *server.trust)
    check(status == 1 and "token" in text, f"{status} {text}")


def control_certificate(server, value):
    shown = ssl.get_server_certificate(("127.0.0.1", int(server.joins.rsplit(":", 1)[1])))
    same(shown.split(), (value / "tls.crt").read_text().split())


# ---- a worker, by what the controller shows of it

def joined(worker, *_):
    check(worker.shown["state"] == "serving" and worker.shown["layers"], worker.shown)


def worker_name(worker, value):
    same(worker.shown["name"], value)


def worker_listens(worker, value):
    name, number = worker.shown["address"].rsplit(":", 1)
    same(number, value.rsplit(":", 1)[1])
    check(not refuses_connections("127.0.0.1", int(number)), "nothing listens there")


def worker_data_port(_, value):
    check(not refuses_connections("127.0.0.1", int(value)), "nothing listens there")


def worker_address(worker, value):
    same(worker.shown["address"].rsplit(":", 1)[0], value)


def worker_threads(worker, value):
    check(worker.shown["device"].endswith(f" x{value}"), worker.shown)


def worker_numa_node(worker, value):
    bound_memory(worker.process.pid, value)


def worker_kernels(worker, value):
    check(value in worker.shown["device"].split(), worker.shown)


def worker_kv(worker, value):
    same(worker.shown["kv_bytes"], int(value.removesuffix("MiB")) * 2**20)


def worker_health(_, value):
    same(Api(int(value.rsplit(":", 1)[1])).json("/health")["connected"], True)


def worker_zone(worker, value):
    same(worker.shown["zone"], value)


def worker_price(worker, value):
    same(worker.shown["price_usd_per_hour"], float(value.split()[0]))


def worker_spot(worker):
    same(worker.shown["spot"], True)


def worker_profile(worker, value):
    """The rates are those of the file."""
    step = json.loads(value.read_text())["step"]
    decode_s = (step["fixed_s"] + step["decode_context_s"] * 8 * 256 + 8 * step["sequence_s"][0] +
                min(8, step["token_knots"][1]) * step["token_s"][0] +
                max(0, 8 - step["token_knots"][1]) * step["token_s"][1])
    shown = worker.shown["decode_tokens_per_s"]
    check(abs(shown * decode_s / 8 - 1) < 1e-6, (shown, 8 / decode_s))
    check(worker.shown["prefill_tokens_per_s"] > 0, worker.shown)
