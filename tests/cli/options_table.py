"""The table of options_test.py: for each kind of server and for `worker`, what each option is given
and how its effect is seen. A new option needs a row in the group that suits it, or in REFUSED."""
import functools
import pathlib

import options_answer_effects as answers
import options_effects as effects
from options_harness import run

from harness.cases import DEMO as MODEL
from harness.fakes import make_certificate
from harness.ports import free_port

KINDS = ("serve", "serve --cluster", "up")
FLEET = "kinds: [{name: rack, provider: none, max: 2, requests: 1 req/s}]\n"
PLAN = """format: 1
model: demo
layers: 4
stages:
  - {{stage: 0, nodes: [{0}-0], layers: [0, 4]}}
  - {{stage: 1, nodes: [{0}-1], layers: [0, 4]}}
"""
BRANCHING = """format: 1
model: demo
layers: 4
stages:
  - {stage: 0, nodes: [worker-0], layers: [0, 3]}
  - {stage: 1, nodes: [worker-1], layers: [3, 4]}
  - {stage: 2, nodes: [worker-2], layers: [3, 4]}
"""


class Row:
    """What an option is given, and how its effect is seen. `last`: its server ends with it."""

    def __init__(self, values, check, last=False):
        self.values = values if isinstance(values, tuple) else (values,)
        self.check, self.last = check, last

    def words(self, option):
        return [option, *self.values] if option != "MODEL" else [*self.values]


class Files:
    """What the options of one start point to, in a folder that goes with the test."""

    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)

    def write(self, name, text):
        (self.folder / name).write_text(text)
        return self.folder / name

    @functools.cached_property
    def certificate(self):
        return make_certificate(self.folder)

    @functools.cached_property
    def token(self):
        run(self.program, "token", "--out", self.folder / "cluster.token")
        return self.folder / "cluster.token"

    @functools.cached_property
    def tls(self):
        run(self.program, "certs", "--out", self.folder / "tls", "--host", "127.0.0.1")
        return self.folder / "tls"

    @functools.cached_property
    def journal(self):
        (self.folder / "journal").mkdir()
        return self.folder / "journal"

    @functools.cached_property
    def model(self):
        (self.folder / "seafarer").symlink_to(MODEL)
        return self.folder / "seafarer"

    @functools.cached_property
    def profile(self):
        run(self.program, "profile", MODEL, "--max-tokens", "128", "--max-num-seqs", "8",
            "--max-context", "256", "--repeats", "1", "--output", self.folder / "profile.json")
        return self.folder / "profile.json"

    @functools.cached_property
    def joins(self):
        return f"127.0.0.1:{free_port()}"


def front(kind, at):
    """The HTTP server and what goes with it."""
    rows = {
        "--host": Row("127.0.0.2", effects.host),
        "--port": Row(free_port(), effects.port),
        "--root-path": Row("/team/llm", effects.root_path),
        "--served-model-name": Row(("alpha", "beta"), effects.names),
        "--allowed-origins": Row("https://a.example", effects.origins),
        "--api-key": Row("sesame", effects.api_key),
        "--api-key-file": Row(at.write("keys", "# more\nalso-sesame\n"), effects.api_key_file),
        "--admin-listen": Row(f"127.0.0.1:{free_port()}", effects.admin_listen),
        "--admin-key": Row("open", effects.admin_key),  # behind --admin-listen
        "--ssl-certfile": Row(at.certificate[0], effects.certificate),
        "--ssl-keyfile": Row(at.certificate[1], lambda server, _: None),  # else no TLS at all
        "--chat-template": Row(
            at.write("chat.jinja", "{% for m in messages %}[[{% if m.content is string %}{{ m.content }}"
                     "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}]]{% endfor %}"),
            answers.chat_template),
        "--chat-template-content-format": Row("string", answers.content_format),
        "--tool-call-parser": Row("json", answers.tool_calls),
        "--reasoning-parser": Row("think", answers.reasoning),
        "--keep-alive-timeout": Row("2", effects.closes_idle),
        "--resume-grace": Row("30", answers.resumable),
        "--drain-delay": Row("1.5", lambda server, _: None),  # the next row
        "--shutdown-timeout": Row("0.1", effects.aborts_what_runs, last=True),
    }
    if kind != "serve":
        rows["--journal"] = Row(at.journal, effects.journal)
        rows["--journal-sync"] = Row("always", effects.journal_sync)
    if kind == "up":
        rows["--pipeline-parallel-size"] = Row("1", effects.stages)
    if kind == "serve --cluster":
        rows["--cluster"] = Row(f"sqlite:{at.folder}/state", effects.store)
        rows["--listen"] = Row(at.joins, effects.workers_join)
        rows["--token"] = Row(at.token, effects.token)
        rows["--tls-dir"] = Row(at.tls / "controller", effects.control_certificate)
    return rows


def sizes(kind, at):
    rows = {
        "MODEL": Row(at.model, effects.model),
        "--max-model-len": Row("600", effects.context),
        "--num-gpu-blocks-override": Row("40", effects.blocks),
        "--block-size": Row("32", effects.block_size),
        "--max-num-seqs": Row("3", effects.sequences),
        "--max-num-batched-tokens": Row("48", effects.batched_tokens),
        "--max-waiting": Row("30", effects.waiting_limit),
        "--no-enable-prefix-caching": Row((), effects.no_prefix_caching),
        "--scheduling-policy": Row("priority", effects.priority),
        "--seed": Row("7", effects.seed),
        "--log-format": Row("json", effects.log_format),
        "--otlp-endpoint": Row(f"http://127.0.0.1:{free_port()}", effects.spans),
        "--step-log": Row(at.folder / "steps.jsonl", effects.step_log),
        "--store": Row(at.folder / "objects", answers.object_store),
        "--store-bytes": Row("2MiB", answers.object_store_limit),
        "--ping-interval": Row("0.001", answers.pings),
        "--request-log": Row(at.folder / "requests.jsonl", answers.request_log),
        "--trust-request-chat-template": Row((), answers.own_template),
        "--clamp-max-tokens": Row((), answers.clamps_length),
    }
    if kind == "serve --cluster":
        rows["--pipeline-parallel-size"] = Row("2", effects.stages)
    else:
        rows["--threads"] = Row("3", effects.threads)
        rows["--cpu-features"] = Row("avx2", effects.kernels)
        rows["--activations"] = Row("bf16x2", effects.kernels)
        rows["--numa-node"] = Row("0", effects.numa_node)
    if kind == "up":
        rows["--workers"] = Row("3", effects.worker_count)
    if kind != "serve":
        rows["--fixed-layout"] = Row((), effects.stays_laid_out, last=True)
    return rows


def memory(kind, at):
    rows = {
        "--kv-policy": Row("orca-max", effects.reserves_whole_context),
        "--prefix-eviction": Row("slru", effects.evicts_by),
        "--no-weight-cache": Row((), effects.no_weight_cache),
        "--config": Row(at.write("server.yaml", "served-model-name: [gamma]\n"),
                        lambda server, _: effects.names(server, "gamma")),
        "--log-level": Row("warning", effects.log_level),
    }
    if kind != "serve --cluster":
        rows["--kv-cache-memory"] = Row("4MiB", effects.kv_memory)
        rows["--populate-kv"] = Row("off", effects.populates)
    if kind != "serve":
        rows["--tensor-parallel-size"] = Row("2", effects.ranks)
    return rows


def swap(kind, at):
    rows = {
        "--preemption-mode": Row("swap", effects.swaps),
        "--swap-space": Row("0.01", effects.swap_space),
    }
    if kind != "serve":
        name = "worker" if kind == "up" else "w"
        rows["--plan"] = Row(at.write("plan.yaml", PLAN.format(name)), effects.plan)
        rows["--dispatch"] = Row("predicted", effects.dispatch)
        rows["--cross-class-replay"] = Row((), effects.cross_class_replay)
        if kind == "serve --cluster":
            rows["--fleet"] = Row(at.write("fleet.yaml", FLEET), effects.fleet)
        rows["--autopilot"] = Row("advise", functools.partial(effects.autopilot, "mode", "advise"))
        rows["--autopilot-window"] = Row("7", functools.partial(effects.autopilot, "window_s", 7))
        rows["--autopilot-horizon"] = Row(
            "99", functools.partial(effects.autopilot, "horizon_s", 99))
        rows["--autopilot-verify"] = Row("11", functools.partial(effects.autopilot, "verify_s", 11))
        rows["--autopilot-margin"] = Row("0.3", functools.partial(effects.autopilot, "margin", 0.3))
    return rows


def latency(_kind, _at):
    return {"--slo": Row(("ttft=1us", "tpot=1h", "attainment=75%"), effects.judges),
            "--refuse-beyond": Row("1", effects.refuses_early, last=True)}


def apart(kind, _):
    return {} if kind == "serve" else {
        "--prefill-workers": Row("1", functools.partial(effects.pipelines, "prefill")),
        "--decode-workers": Row("2", functools.partial(effects.pipelines, "decode"))}


def replicas(kind, _):
    return {} if kind == "serve" else {
        "--data-parallel-size": Row("3", functools.partial(effects.pipelines, "both"))}


GROUPS = {"front": front, "sizes": sizes, "memory": memory, "swap": swap, "latency": latency,
          "apart": apart, "replicas": replicas}
# These have no row for `serve`.
OF_CLUSTERS = {"apart", "replicas"}

# What else a start is given: it makes an effect visible, and another start has its row.
BESIDE = {"memory": ["--step-log", "steps.jsonl"],
          "swap": ["--num-gpu-blocks-override", "24", "--max-model-len", "256", "--step-log",
                   "steps.jsonl"]}
# The same for one kind of server.
BESIDE_OF = {("up", "sizes"): ["--pipeline-parallel-size", "3"]}
# Workers of `serve --cluster`: how many, and their options.
WORKERS = {"front": (1, []), "sizes": (2, []), "memory": (2, ["--kv-cache-memory", "2MiB"]),
           "swap": (2, []), "latency": (1, []), "apart": (3, []), "replicas": (3, [])}

# Refused by the command, with a sentence that has these words.
REFUSED = {
    "serve": {
        "--cluster": ("sqlite:state", "--cluster needs --listen"),
        "--listen": ("127.0.0.1:0", "give --cluster as well"),
        "--etcd-tls-dir": (".", "give --cluster as well"),
        "--token": ("file", "give --cluster as well"),
        "--tls-dir": (".", "give --cluster as well"),
        "--insecure": ("true", "give --cluster as well"),
        "--journal": (".", "give --cluster as well"),
        "--journal-sync": ("always", "give --cluster as well"),
        "--plan": ("plan.yaml", "use `millrace up`"),
        "--fixed-layout": ("true", "use `millrace up`"),
        "--dispatch": ("random", "use `millrace up`"),
        "--cross-class-replay": ("true", "use `millrace up`"),
        "--autopilot": ("act", "use `millrace up`"),
        "--autopilot-window": ("7", "needs --autopilot"),
        "--autopilot-horizon": ("99", "needs --autopilot"),
        "--autopilot-verify": ("11", "needs --autopilot"),
        "--autopilot-margin": ("0.3", "needs --autopilot"),
        "--fleet": ("fleet.yaml", "give --cluster as well"),
        "--prefill-workers": ("1", "use `millrace up`"),
        "--decode-workers": ("1", "use `millrace up`"),
        "--data-parallel-size": ("2", "use `millrace up`"),
        "--pipeline-parallel-size": ("2", "use `millrace up`"),
        "--tensor-parallel-size": ("2", "use `millrace up`"),
    },
    "serve --cluster": {
        "--threads": ("3", "give it to each `millrace worker`"),
        "--kv-cache-memory": ("4MiB", "give it to each `millrace worker`"),
        "--populate-kv": ("off", "give it to each `millrace worker`"),
        "--cpu-features": ("avx2", "give it to each `millrace worker`"),
        "--activations": ("bf16x2", "give it to each `millrace worker`"),
        "--numa-node": ("0", "give it to each `millrace worker`"),
    },
    "up": {},
}
# Seen by tests of their own, below; those of a model on the hub by tests/e2e/hub.py.
OF_THE_HUB = {"--revision", "--offline"}
# --uds: in http_test.py.
ELSEWHERE = {"serve": {"--help", "--uds"} | OF_THE_HUB, "up": {"--help", "--uds"} | OF_THE_HUB,
             "serve --cluster":
                 {"--help", "--insecure", "--etcd-tls-dir", "--uds"} | OF_THE_HUB}


def workers(at):
    """Two workers of a controller that wants certificates; the second has no model files."""
    first = {
        "MODEL": Row(at.model, effects.joined),
        "--join": Row((f"127.0.0.1:{free_port()}", at.joins), effects.joined),  # the second leads
        "--token": Row(at.token, effects.joined),
        "--tls-dir": Row(at.tls / "worker", effects.joined),
        "--name": Row("first", effects.worker_name),
        "--listen": Row(f"127.0.0.1:{free_port()}", effects.worker_listens),
        "--data-port": Row(free_port(), effects.worker_data_port),
        "--advertise": Row("localhost", effects.worker_address),
        "--threads": Row("3", effects.worker_threads),
        "--cpu-features": Row("avx2", effects.worker_kernels),
        "--numa-node": Row("0", effects.worker_numa_node),
        "--activations": Row("bf16x2", effects.worker_kernels),
        "--kv-cache-memory": Row("3MiB", effects.worker_kv),
        "--populate-kv": Row("off", effects.worker_populates),
        "--no-weight-cache": Row((), effects.worker_no_weight_cache),
        "--zone": Row("east", effects.worker_zone),
        "--price": Row("0.12 USD/h", effects.worker_price),
        "--spot": Row((), effects.worker_spot),
        "--profile": Row(at.profile, effects.worker_profile),
        "--log-format": Row("json", effects.log_format),
    }
    second = {
        "--weights": Row("peer", effects.joined),  # it has layers, and no folder to read them from
        "--config": Row(at.write("worker.yaml", "name: from-file\n"), effects.joined),
        "--activations": Row("bf16x2", effects.worker_kernels),
        "--log-level": Row("warning", lambda worker, _: effects.log_level(worker, None)),
        "--health-listen": Row(f"127.0.0.1:{free_port()}", effects.worker_health),
    }
    return first, second


# Options of `worker` with a test of their own, below, and what it gives them.
WORKER_ALONE = {"--max-model-len": ("100",), "--insecure": ("true",),
                "--profile-cache": ("cache",), "--no-measure-profile": (),
                "--notice-source": ("aws",), "--notice-endpoint": ("http://127.0.0.1:9",),
                "--grace": ("20s",), "--weights-extra": ("1000",),
                "--health-stuck-after": ("30",)}


def words_of(rows):
    """MODEL first: an option that takes several values would swallow it."""
    return [word for option, row in sorted(rows.items(), key=lambda item: item[0] != "MODEL")
            for word in row.words(option)]


def option_of(row_name):
    return row_name.replace("--no-", "--", 1)
