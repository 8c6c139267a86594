#!/usr/bin/env python3
"""Kills the controller of a cluster while it streams, and starts it again or lets a standby take
over. Clients come back with Last-Event-ID: each must have every event of its stream once, byte for
byte what one undisturbed process sends, and workers must not load their layers again.

Usage: controller_restart.py PROGRAM MODEL [--streams N] [--kills N] [unittest arguments]
"""
import concurrent.futures
import contextlib
import http.client
import pathlib
import shutil
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.http import ANSWER_LIMIT_S, Api, send  # noqa: E402
from harness.ports import free_port  # noqa: E402
from harness.processes import run  # noqa: E402

from restart_harness import GRACE, PROGRAM, ClusterTest, Stream, options, rest  # noqa: E402


class ControllerDies(ClusterTest):
    asks_wide = True

    def controller(self, port, workers_port, *more, cut="--pipeline-parallel-size"):
        return self.start("serve", options.model, "--cluster", f"sqlite:{self.folder / 'state'}",
                          "--listen", f"127.0.0.1:{workers_port}", "--port", str(port),
                          cut, "2", *GRACE, *more)

    def test_started_again_it_goes_on(self):
        self.check_goes_on("--pipeline-parallel-size")

    def test_started_again_it_goes_on_with_ranks(self):
        self.check_goes_on("--tensor-parallel-size")

    def test_a_store_that_was_lost_is_joined_again(self):
        port, workers_port = free_port(), free_port()
        controller = self.controller(port, workers_port)
        self.workers(workers_port)
        for _ in range(2):
            controller.wait_for("every layer")
            controller.kill()
            controller = self.controller(port, workers_port)
        controller.wait_for("leading, term")
        controller.kill()
        shutil.rmtree(self.folder / "state")
        controller = self.controller(port, workers_port)
        controller.wait_for("every layer")
        self.run_all([Stream([port], request) for request in self.asked[:1]])
        self.assertEqual(controller.stop(), 0, controller.output)

    def check_goes_on(self, cut):
        port, workers_port = free_port(), free_port()
        controller = self.controller(port, workers_port, cut=cut)
        workers = self.workers(workers_port)
        controller.wait_for("every layer")
        streams = [Stream([port], request) for request in self.asked]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            for kill in range(options.kills):
                killed = self.kill_under(streams, controller, 0.7 * (kill + 1) / options.kills)
                controller = self.controller(port, workers_port, cut=cut)
                controller.wait_for("every layer")
                print(f"all layers again after {time.monotonic() - killed:.2f} s", flush=True)
                controller.wait_for(r"recovered \d+ streams")
            for one in running:
                one.result(ANSWER_LIMIT_S)
        self.check(streams, workers)
        # Who has lost all of it may still fetch the whole.
        for stream in streams:
            again = Stream([port], stream.request)
            again.events = [(f"cmpl-{stream.request['request_id']}:0", "")]
            again.run()
            self.assertEqual(again.events[1:], stream.events)
        self.assertEqual(controller.stop(), 0, controller.output)

    def test_a_standby_takes_over(self):
        ports, workers_ports = [free_port(), free_port()], [free_port(), free_port()]
        leader = self.controller(ports[0], workers_ports[0])
        leader.wait_for("leading, term")
        standby = self.controller(ports[1], workers_ports[1])
        workers = self.workers(*workers_ports)
        leader.wait_for("every layer")
        standby.wait_for("standing by")
        streams = [Stream(ports, request) for request in self.asked]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            killed = self.kill_under(streams, leader, 0.4)
            standby.wait_for("every layer")
            print(f"all layers again after {time.monotonic() - killed:.2f} s", flush=True)
            for one in running:
                one.result(ANSWER_LIMIT_S)
        self.check(streams, workers)

    def test_several_prompts_and_logprobs_go_on(self):
        port, workers_port = free_port(), free_port()
        controller = self.controller(port, workers_port)
        workers = self.workers(workers_port)
        controller.wait_for("every layer")
        streams = [Stream([port], request) for request in self.wide]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            for share in (0.2, 0.5):
                self.kill_under(streams, controller, share)
                controller = self.controller(port, workers_port)
                controller.wait_for("every layer")
                controller.wait_for(f"recovered {len(streams)} streams")
            for one in running:
                one.result(ANSWER_LIMIT_S)
        self.check_numbers(streams)
        for stream, expected in zip(streams, self.wide_expected):
            self.assertEqual(stream.by_choice(), expected)
        self.check_workers(workers)

    def test_streams_without_an_event_yet_go_on(self):
        port, workers_port = free_port(), free_port()
        controller = self.controller(port, workers_port)
        controller.wait_for("leading, term")
        with Api(port).connect() as connection:
            while True:  # it waits for workers, but for its head it need not
                reply = send(connection, "POST", "/v1/completions",
                             {**self.asked[0], "stream": True})
                if reply.status != 503:
                    break
                reply.read()
            name = reply.getheader("X-Stream-Id")
            self.assertEqual((reply.status, name), (200, "cmpl-stream-0"))
            controller.kill()
        controller = self.controller(port, workers_port)
        controller.wait_for("recovered 1 streams")
        workers = self.workers(workers_port)
        stream = Stream([port], self.asked[0])
        stream.events = [(f"{name}:0", "")]
        stream.run()
        stream.events.pop(0)
        self.expected = self.expected[:1]
        self.check([stream], workers)

    def test_up_with_a_journal(self):
        """Its workers end with it; the next one has workers of its own."""
        def up():
            process = self.begin("up", options.model, "--port", str(port),
                                 "--pipeline-parallel-size", "2",
                                 "--threads", "1", "--kv-cache-memory", "128MiB", "--journal",
                                 str(self.folder / "journal"), *GRACE)
            process.wait_for("every layer")
            return process

        port = free_port()
        controller = up()
        streams = [Stream([port], request) for request in self.asked]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            self.kill_under(streams, controller, 0.4)
            controller = up()
            controller.wait_for(r"recovered \d+ streams")
            for one in running:
                one.result(ANSWER_LIMIT_S)
        self.check(streams, [])
        self.assertEqual(controller.stop(), 0, controller.output)

    def test_with_a_journal_on_the_disk_before_clients_hear(self):
        port, workers_port = free_port(), free_port()
        always = ("--journal-sync", "always")
        controller = self.controller(port, workers_port, *always)
        workers = self.workers(workers_port)
        controller.wait_for("every layer")
        streams = [Stream([port], request) for request in self.asked]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            running = [pool.submit(stream.run) for stream in streams]
            self.kill_under(streams, controller, 0.4)
            controller = self.controller(port, workers_port, *always)
            controller.wait_for("every layer")
            for one in running:
                one.result(ANSWER_LIMIT_S)
        self.check(streams, workers)

    @staticmethod
    def layers(controller):
        return {worker["name"]: worker["layers"] for worker in controller.status()["workers"]}

    def test_a_plan_that_was_applied_is_kept(self):
        port, workers_port = free_port(), free_port()
        controller = self.controller(port, workers_port)
        self.workers(workers_port)
        controller.wait_for("every layer")
        wanted = {"a": [[1, 4]], "b": [[0, 1]]}
        self.assertNotEqual(self.layers(controller), wanted)
        plan = self.folder / "plan.yaml"
        plan.write_text("format: 1\nmodel: demo\nlayers: 4\nstages:\n"
                        "  - {stage: 0, nodes: [b], layers: [0, 1]}\n"
                        "  - {stage: 1, nodes: [a], layers: [1, 4]}\n")
        run(PROGRAM, "plan", "apply", plan, "--base-url", f"http://127.0.0.1:{port}")
        self.assertEqual(self.layers(controller), wanted)
        controller.kill()
        controller = self.controller(port, workers_port)
        controller.wait_for("every layer")
        self.assertEqual(len(controller.said("starting with the plan that was applied last")), 1)
        self.assertEqual(self.layers(controller), wanted)
        # Another layout on the command line counts more than what was applied to the one before.
        controller.kill()
        controller = self.controller(port, workers_port, "--fixed-layout", "--pipeline-parallel-size", "1")
        controller.wait_for("it is for another model or layout")

    def test_nobody_waits_for_what_had_no_stream(self):
        port, workers_port = free_port(), free_port()
        controller = self.controller(port, workers_port)
        self.workers(workers_port)
        controller.wait_for("every layer")

        def ask():
            with contextlib.suppress(OSError, http.client.HTTPException):
                Api(port).post("/v1/completions",
                               {"prompt": "x", "max_tokens": 900, "ignore_eos": True})

        client = threading.Thread(target=ask)
        client.start()
        time.sleep(0.3)
        controller.kill()
        client.join()
        controller = self.controller(port, workers_port)
        controller.wait_for("every layer")
        self.assertEqual(len(controller.said("recovered 0 streams.* dropped 1 requests")), 1,
                         controller.output)
        self.assertEqual(controller.status()["requests"], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
