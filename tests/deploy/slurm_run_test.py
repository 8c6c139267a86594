#!/usr/bin/env python3
"""Runs the job of deploy/slurm with the real program on two hosts, with its own options, names and
certificates, and ends it as Slurm does before a time limit. `srun` and `scontrol` are stand-ins
that start what the job asks for on the host that it names. Needs root (for `ip netns`).

Usage: slurm_run_test.py PROGRAM MODEL
"""
import os
import pathlib
import re
import signal
import sys
import tempfile

from hosts import Host, Network

from harness.cases import ROOT, take_paths
from harness.namespaces import skip_if_unavailable
from harness.proc import mentioning
from harness.processes import Process

PROGRAM, MODEL = take_paths(2)
JOB = ROOT / "deploy" / "slurm" / "millrace.sbatch"

SRUN = """#!/usr/bin/env bash
while [ "${1#--}" != "$1" ]; do
  case $1 in --nodelist=*) node=${1#--nodelist=} ;; esac
  shift
done
# The workers share this machine's memory, and each gets a half of the model.
case " $* " in
  *" worker "*) export MILLRACE_KV_CACHE_MEMORY=64MiB ;;
  *) export MILLRACE_PIPELINE_PARALLEL_SIZE=2 ;;
esac
exec ip netns exec "$(<"$SPACES/$node")" "$@"
"""


def tools(folder, hosts):
    """The stand-ins, and the namespace of each host for them."""
    (folder / "bin").mkdir()
    names = "\\n".join(h.name for h in hosts)
    for name, text in (("srun", SRUN), ("scontrol", f"#!/bin/sh\nprintf '{names}\\n'\n")):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "spaces").mkdir()
    for host in hosts:
        (folder / "spaces" / host.name).write_text(host.network.space(host.address))


def run(folder):
    text = JOB.read_text()
    grace_s = int(re.search(r"#SBATCH --signal=B:TERM@(\d+)", text).group(1))
    hosts = [Host(f"node{i}", f"10.80.0.{i + 1}", [], folder) for i in (1, 2)]
    with Network(hosts):
        tools(folder, hosts)
        environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder),
                       "SPACES": str(folder / "spaces"), "SLURM_JOB_ID": "7",
                       "SLURM_JOB_NODELIST": "node[1-2]", "MODEL": MODEL, "MILLRACE": PROGRAM,
                       "STORE_DIR": str(folder / "store")}
        job = hosts[0].add(Process("bash", JOB, cwd=folder, env=environment,
                                   log=hosts[0].folder / "log", start_new_session=True))
        (hosts[1].folder / "log").touch()
        try:
            hosts[0].wait_until_ready(hosts)
            hosts[0].check_answers((folder / "millrace-7" / "api.key").read_text().strip())
            said = hosts[0].said()
            assert "does not reach itself" not in said, said
            job.send_signal(signal.SIGTERM)
            assert job.process.wait(grace_s) == 0, hosts[0].said()[-3000:]
        except BaseException:
            os.killpg(job.process.pid, signal.SIGKILL)  # with what it has started
            raise
        assert not (left := mentioning(str(folder))), f"still running: {left}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        run(pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(skip_if_unavailable(main))
