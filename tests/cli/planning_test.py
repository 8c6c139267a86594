#!/usr/bin/env python3
"""Follows docs/planning.md: writes its files, runs its commands, compares what it promises. Its last
section is about several machines; e2e/cluster_page.py follows that one.

Usage: planning_test.py PROGRAM
"""
import json
import os
import pathlib
import re
import shlex
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "bench")]
import predict  # noqa: E402
from harness import processes  # noqa: E402
from harness.cases import ROOT, take_paths  # noqa: E402

# The search is bounded by time, so the flow of a plan may differ a little from run to run.
FLOW_TOLERANCE = 0.05


def blocks(text):
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def flow_of(summary):
    found = re.search(r"^\s*flow\s+([\d.]+) tokens/s", summary, re.MULTILINE)
    return float(found.group(1)) if found else None


def run(program, command, folder):
    words = shlex.split(command)
    assert words[0] == "millrace", command
    environment = {"PATH": os.environ["PATH"], "HOME": folder}
    done = processes.run(program, *words[1:], cwd=folder, env=environment)
    assert done.stdout, f"{command}: printed nothing"
    return done.stdout


def rate_of(summary, word):
    found = re.search(rf"^{word}: ([\d.]+) req/s", summary, re.MULTILINE)
    assert found, f"no line '{word}: ... req/s' in {summary}"
    return float(found.group(1))


def compare_rates(promised, printed):
    """The rates that the page quotes are those that its command prints."""
    for word, rate in re.findall(r"^(estimate|simulated): ([\d.]+) req/s", promised, re.MULTILINE):
        got = rate_of(printed, word)
        assert abs(got / float(rate) - 1) < FLOW_TOLERANCE, (word, rate, got)


def check_judged_goodput(program, folder):
    """The simulator's choice is at least as good, in the simulator, as the estimate's."""
    command = "millrace plan --cluster cluster.yaml --model llama-70b --objective goodput --slo ttft=2s tpot=300ms"
    judged = rate_of(run(program, command, folder), "simulated")
    by_estimate = run(program, command + " --no-simulate --out estimated.yaml", folder)
    assert "simulated:" not in by_estimate
    assert 0 < judged <= 2 * rate_of(by_estimate, "estimate"), judged
    # Run the estimate's own choice at the rate that the judged plan keeps: it keeps no more.
    report = run(program, "millrace simulate --plan estimated.yaml --cluster cluster.yaml --model llama-70b "
                 f"--rate {1.2 * judged} --num-requests 400 --input-len 763 --output-len 232 "
                 "--slo ttft=2s tpot=300ms --json", folder)
    attainment = json.loads(report)["runs"][0]["slo"]["attainment"]
    assert attainment < 0.9, f"the estimate's plan keeps the limits at {1.2 * judged} req/s: {attainment}"


def check_roles(program, folder):
    """The page's plan with roles is sound, is drawn, and beats plans without roles in the simulator."""
    plan = ("millrace plan --cluster unlike.yaml --model llama3-8b --workload long-prompts.yaml --objective goodput "
            "--slo ttft=1s tpot=40ms --time-limit 60 --json")
    answer = json.loads(run(program, plan, folder))
    roles = {stage["role"] for stage in answer["stages"]}
    assert {"prefill", "decode"} <= roles, roles
    assert "hand-over" in {edge["phase"] for edge in answer["edges"]}
    judged = {c["roles"]: c["simulated_requests_per_s"] for c in reversed(answer["candidates"])
              if c["simulated_requests_per_s"] is not None}
    assert judged[True] > 1.2 * judged[False] > 0, judged
    assert any(c["single_machine"] for c in answer["candidates"]), answer["candidates"]
    again = json.loads(run(program, plan, folder))
    assert answer["stages"] == again["stages"], "the same seed gives another plan"
    check = run(program, "millrace plan check apart.yaml --cluster unlike.yaml --workload long-prompts.yaml", folder)
    assert check.startswith("apart.yaml: sound"), check
    picture = pathlib.Path(folder, "apart.svg").read_text()
    assert 'class="hand-over"' in picture and "prefill" in picture and "decode" in picture
    explained = run(program, "millrace plan explain apart.yaml --cluster unlike.yaml --workload long-prompts.yaml "
                    "--seconds-per-kind 0.5", folder)
    assert explained.count("(bottleneck)") == 1 and "One more node of a kind" in explained, explained
    assert "requests/s without limits on latency by the estimate" in explained, explained
    limited = run(program, "millrace plan explain apart.yaml --cluster unlike.yaml --workload long-prompts.yaml "
                  "--slo ttft=1s tpot=40ms --seconds-per-kind 0.1", folder)
    assert "requests/s within the limits by the estimate" in limited, limited
    assert float(limited.split()[0]) < float(explained.split()[0]), (limited, explained)
    # A plan whose KV would leave its group is refused.
    cluster = pathlib.Path(folder, "unlike.yaml").read_text()
    pathlib.Path(folder, "groups.yaml").write_text(cluster + "kv_affinity: [[computes], [reads]]\n")
    done = processes.run(program, "plan", "check", "apart.yaml", "--cluster", "groups.yaml", "--workload",
                         "long-prompts.yaml", cwd=folder, status=1)
    assert "kv_affinity" in done.stderr, done.stderr


def check_steps(program, folder):
    """The sizes of the server's steps change the rates; an option says the same as the cluster file, and comes first."""
    command = "millrace plan --cluster {}.yaml --model llama3-8b --time-limit 1"
    cluster = pathlib.Path(folder, "unlike.yaml").read_text()
    pathlib.Path(folder, "served.yaml").write_text(cluster + "server: {max_num_seqs: 4, max_num_batched_tokens: 128}\n")
    usual = run(program, command.format("unlike"), folder)
    by_file = run(program, command.format("served"), folder)
    by_option = run(program, command.format("unlike") + " --max-num-seqs 4 --max-num-batched-tokens 128", folder)
    assert flow_of(by_option) == flow_of(by_file) < 0.5 * flow_of(usual), (by_option, by_file, usual)
    assert "\n  steps of at most 128 tokens (served.yaml) and 4 sequences (served.yaml)\n" in by_file, by_file
    assert "\n  steps " not in usual, usual
    steps = json.loads(run(program, command.format("served") + " --json", folder))["steps"]
    assert steps == {"max_num_batched_tokens": 128, "max_num_seqs": 4}, steps
    both = run(program, command.format("served") + " --max-num-seqs 8", folder)
    assert "\n  steps of at most 128 tokens (served.yaml) and 8 sequences (--max-num-seqs)\n" in both, both
    assert flow_of(by_file) < flow_of(both) < flow_of(usual), (by_file, both)


def check_several_stages(program, folder):
    """A plan with several stages on each machine is explained, and rated after the loss of a machine."""
    pathlib.Path(folder, "alike.yaml").write_text(
        "name: alike\nnodes: [{name: box, count: 3, device: a100-80gb, devices: 4, memory: 80 GB}]\n"
        "links: {within_region: {bandwidth: 25 Gbit/s, latency: 0.1 ms}}\n")
    command = ("millrace plan --cluster alike.yaml --model llama3-8b --workload long-prompts.yaml --objective goodput "
               "--slo ttft=2s tpot=100ms --time-limit 60 --no-simulate --out several.yaml")
    explain = "millrace plan explain several.yaml --cluster alike.yaml --workload long-prompts.yaml --seconds-per-kind 0.5"
    whole = run(program, command, folder)
    assert "found by goodput: DistServe, " in whole and "prefill on 3 x a100-80gbx4, decode on 3 x" in whole, whole
    explained = run(program, explain + " --slo ttft=2s tpot=100ms", folder)
    assert len(re.findall(r" %  prefill \+ decode box-\d\n", explained)) == 3, explained
    assert re.search(r"One more node of a kind would add at least:\n +\d+ requests/s  a100-80gbx4, for ", explained), explained
    left = run(program, command + " --survive 1", folder)
    assert re.search(r"bound by \w+ after the loss of box-\d\nall rates are those after the loss of any one node\n",
                     left), left
    assert "found by goodput: DistServe, 12 units of 1 x TP1" in left, left
    assert 0.4 < rate_of(left, "estimate") / rate_of(whole, "estimate") < 0.7, (left, whole)
    explained = run(program, explain, folder)
    assert explained.count(", 4 stages  (bottleneck)\n") == 3, explained
    more = float(re.search(r"([\d.]+)  a100-80gbx4, for", explained).group(1))
    assert more > 0.3 * flow_of(left), explained


def check_time_limit(program, folder):
    """The search for goodput ends with its time limit, with a plan."""
    command = "millrace plan --cluster cluster.yaml --model llama-70b --objective goodput --slo ttft=2s tpot=300ms"
    begin = time.monotonic()
    assert rate_of(run(program, command + " --time-limit 1", folder), "estimate") > 0
    assert time.monotonic() - begin < 6, "a time limit of 1 s took more than 6 s"


def check_measured(program, folder):
    """A machine that was measured ten times as slow carries less, and says whose times these are."""
    command = "millrace plan --cluster mine.yaml --model models/demo --node-profile my-laptop={} --time-limit 1"
    measured = run(program, command.format("laptop.json"), folder)
    assert "my-laptop measured (laptop.json); estimate from first principles for cpu-2core" in measured, measured
    profile = json.loads(pathlib.Path(folder, "laptop.json").read_text())
    for fit in ("step", "layers"):
        for key in ("fixed_s", "prefill_squared_s", "decode_context_s", "token_s", "sequence_s"):
            value = profile[fit][key]
            profile[fit][key] = [10 * v for v in value] if isinstance(value, list) else 10 * value
    pathlib.Path(folder, "slow.json").write_text(json.dumps(profile))
    slow = run(program, command.format("slow.json"), folder)
    rows = [re.search(r"^laptop\s.*\s([\d.]+)$", text, re.MULTILINE) for text in (measured, slow)]
    fast, slow = (float(row.group(1)) for row in rows)
    assert 0 < 5 * slow < fast, (fast, slow)


def check_rests(program, folder):
    """bench/predict.py serves while a profile rests, and finds the rests by these lines."""
    command = "profile models/demo --max-tokens 64 --max-num-seqs 8 --max-context 256 --repeats 3 --rest 0.01"
    done = processes.run(program, *command.split(), "--output", "rests.json", cwd=folder)
    rests = [line for line in done.stderr.splitlines() if line.startswith(predict.PAUSE_LINE)]
    assert len(rests) == 2, done.stderr


def main():
    program, = take_paths(1)
    page = (ROOT / "docs/planning.md").read_text().split("**On 10.77.")[0]
    commands = 0
    printed = ""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "models").symlink_to(ROOT / "models")
        for language, body in blocks(page):
            if language == "yaml":
                name = re.match(r"# (\S+\.yaml)\n", body).group(1)
                pathlib.Path(folder, name).write_text(body)
            elif language == "sh":
                printed = ""
                for command in body.splitlines():
                    printed += run(program, command, folder)
                    commands += 1
            elif language == "text":
                promised = flow_of(body)
                if promised is not None:
                    got = flow_of(printed)
                    assert abs(got / promised - 1) < FLOW_TOLERANCE, (promised, got)
                compare_rates(body, printed)
                for heading in re.findall(r"^[A-Z][^:\n]*?(?=[,:])", body, re.MULTILINE):
                    assert heading in printed, f"the page shows '{heading}': {printed}"
        assert "<svg" in pathlib.Path(folder, "plan.svg").read_text()
        assert run(program, "millrace plan check plan.yaml --cluster cluster.yaml",
                   folder).startswith("plan.yaml: sound")
        check_judged_goodput(program, folder)
        check_roles(program, folder)
        check_steps(program, folder)
        check_several_stages(program, folder)
        check_time_limit(program, folder)
        check_measured(program, folder)
        check_rests(program, folder)
    assert commands >= 8, commands
    print(f"{commands} commands of docs/planning.md ran")


if __name__ == "__main__":
    main()
