#!/usr/bin/env python3
"""Two controllers over one store, and journals that the next leader takes over: the first is killed,
or stopped so long that it is succeeded, and wakes as a zombie. Clients come back with Last-Event-ID:
each must have every event of its stream once, byte for byte what one undisturbed process sends.
Tests that want etcd are skipped where it is not installed, or the build is without it.

With MILLRACE_LONG_PAUSES in the environment, a leader that stands alone is stopped for 60 s, and
etcd for 30 s.

Usage: controller_takeover.py PROGRAM MODEL [--streams N] [unittest arguments]
"""
import concurrent.futures
import os
import pathlib
import shutil
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.http import ANSWER_LIMIT_S  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import START_LIMIT_S, Process, run  # noqa: E402

from restart_harness import GRACE, PROGRAM, ClusterTest, Stream, options, rest  # noqa: E402

LOST_LEADERSHIP = 75
LEASE_S = 5
LONG = "MILLRACE_LONG_PAUSES" in os.environ  # of 60 s and 30 s, not of a little more than the lease
PATIENCE_S = 1.5  # of clients that do not wait for a leader that says nothing


class TwoControllers(ClusterTest):
    def etcd(self, *flags, scheme="http"):
        """The address of one that runs until the test ends."""
        if not shutil.which("etcd"):
            self.skipTest("needs etcd")
        client, peer = (f"{s}://127.0.0.1:{free_port()}" for s in (scheme, "http"))
        self.etcd_process = Process(
            "etcd", "--name", "m", "--data-dir", self.folder / "etcd", "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}", *flags)
        self.addCleanup(self.etcd_process.kill)
        return "etcd://" + client.split("//")[1]

    def controller(self, store, port, workers_port, *more):
        return self.start("serve", options.model, "--cluster", store, "--listen",
                          f"127.0.0.1:{workers_port}", "--port", str(port),
                          "--pipeline-parallel-size", "2", *GRACE, *more)

    def lead(self, controller):
        """Waits until it does."""
        if "no etcd client" in controller.wait_for("leading, term|this build has no etcd client"):
            self.skipTest("a build without etcd")

    def pair(self, store, *more):
        """A leader, one that stands by, their ports, workers that serve."""
        ports, workers_ports = [free_port(), free_port()], [free_port(), free_port()]
        leader = self.controller(store, ports[0], workers_ports[0], *more)
        self.lead(leader)
        standby = self.controller(store, ports[1], workers_ports[1], *more)
        workers = self.workers(*workers_ports)
        leader.wait_for("every layer")
        standby.wait_for("standing by")
        return leader, standby, ports, workers

    def journal(self):
        return "--journal", str(self.folder / "journal")

    def succeed(self, leader, standby, ports, workers, how):
        """Kills or stops the leader under streams; those of even numbers wait for what it says."""
        streams = [Stream(ports, request, ANSWER_LIMIT_S if i % 2 == 0 else PATIENCE_S)
                   for i, request in enumerate(self.asked)]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            begun = self.kill_under(streams, leader, 0.4, how)
            if how == signal.SIGSTOP:
                self.wake(leader, standby, begun)
            standby.wait_for("every layer")
            print(f"all layers again after {time.monotonic() - begun:.2f} s", flush=True)
            for one in running:
                one.result(ANSWER_LIMIT_S)
        self.check(streams, workers)
        return streams

    def wake(self, leader, standby, stopped):
        standby.wait_for("every layer")
        print(f"succeeded after {time.monotonic() - stopped:.2f} s", flush=True)
        self.end(leader)

    def end(self, leader):
        """A leader that was stopped wakes and ends by itself."""
        leader.send_signal(signal.SIGCONT)
        self.assertEqual(leader.process.wait(START_LIMIT_S), LOST_LEADERSHIP,
                         leader.output)
        self.assertEqual(len(leader.said("error this controller is no longer the leader")), 1, leader.output)


class Takeover(TwoControllers):
    def test_killed_with_etcd_and_a_shared_journal(self):
        pair = self.pair(self.etcd(), *self.journal())
        self.succeed(*pair, signal.SIGKILL)

    def certificates(self, name):
        run(PROGRAM, "certs", "--out", self.folder / name, "--host", "127.0.0.1")
        return self.folder / name / "controller"

    def test_etcd_over_tls(self):
        folder = self.certificates("tls")
        store = self.etcd("--cert-file", str(folder / "tls.crt"), "--key-file",
                          str(folder / "tls.key"), "--trusted-ca-file", str(folder / "ca.crt"),
                          "--client-cert-auth", scheme="https")
        tls = "--etcd-tls-dir", str(folder)
        port, workers_port = free_port(), free_port()
        # Whose authority is another's neither believes nor is believed; plain text is no better.
        for wrong, why in ((("--etcd-tls-dir", str(self.certificates("other"))), "certificate verify failed"),
                           ((), "no etcd member can be reached")):
            refused = self.controller(store, port, workers_port, *wrong)
            refused.wait_for(f"cannot lead yet: .*{why}")
            self.assertEqual(refused.said("leading"), [])
            print("".join(refused.said("cannot lead")).strip(), flush=True)
            refused.stop()
        leader, _, ports, workers = self.pair(store, *tls, *self.journal())
        self.assertEqual(len(leader.said("leading, term")), 1)
        streams = [Stream(ports, request) for request in self.asked[:2]]
        self.run_all(streams)
        self.check(streams, workers)
        self.assertEqual(leader.stop(), 0)


class Stopped(TwoControllers):
    def test_stopped_with_etcd_it_is_succeeded_and_fenced(self):
        leader, standby, ports, workers = self.pair(self.etcd(), *self.journal())
        streams = self.succeed(leader, standby, ports, workers, signal.SIGSTOP)
        # Clients that had waited for it were told, without a number that would pass for an event.
        told = [error for stream in streams[::2] for error in stream.errors]
        print("told by the woken leader:", told[:1], flush=True)
        self.assertGreater(len(told), 0)
        for number, data in told:
            self.assertIsNone(number)
            self.assertRegex(data, "no longer the leader|a later leader has taken over")


class Alone(TwoControllers):
    """Nobody can have led while the leader could not renew its lease: it takes it again and goes on."""

    def alone(self, store):
        port, workers_port = free_port(), free_port()
        leader = self.controller(store, port, workers_port, *self.journal())
        self.lead(leader)
        workers = self.workers(workers_port)
        leader.wait_for("every layer")
        return leader, port, workers

    def goes_on(self, leader, ports, workers, pause):
        streams = [Stream(ports, request) for request in self.asked]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            self.wait_until_under_way(streams, 0.4)
            pause()
            leader.wait_for("leading again")
            for one in running:
                one.result(ANSWER_LIMIT_S)
        self.check(streams, workers)
        self.assertIsNone(leader.process.poll())

    def stop_for(self, process, seconds):
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def test_stopped_with_sqlite(self):
        leader, standby, ports, workers = self.pair(f"sqlite:{self.folder / 'state'}")
        self.goes_on(leader, ports, workers, lambda: self.stop_for(leader, 60 if LONG else LEASE_S + 3))
        self.assertEqual(standby.said("leading"), [])

    def test_etcd_stopped_and_no_standby(self):
        leader, port, workers = self.alone(self.etcd())
        self.goes_on(leader, [port], workers,
                     lambda: self.stop_for(self.etcd_process, 30 if LONG else LEASE_S + 7))

    def test_stopped_with_etcd(self):
        leader, port, workers = self.alone(self.etcd())
        self.goes_on(leader, [port], workers,
                     lambda: self.stop_for(leader, 60 if LONG else LEASE_S + 3))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
