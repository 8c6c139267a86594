#!/usr/bin/env python3
"""Serves OpenVINO GenAI's ContinuousBatchingPipeline as /v1/completions, for measurements.

The package has no server of its own. This one takes prompts as token ids, answers greedily, always
streams and always ignores the end of text. One thread runs the pipeline, the event loop the
connections. Text is looked up token by token, which costs less than decoding.
"""
import argparse
import asyncio
import json
import pathlib
import queue
import threading

import numpy
import openvino
import openvino_genai

SPACE = "\u0120"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kv-cache-gb", type=int, required=True)
    parser.add_argument("--max-num-batched-tokens", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    return parser.parse_args()


class Engine:
    """The pipeline on its own thread. Tokens of a request come to the queue that it gave."""

    def __init__(self, args, loop):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = args.kv_cache_gb
        scheduler.max_num_batched_tokens = args.max_num_batched_tokens
        scheduler.max_num_seqs = args.max_num_seqs
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(args.model), scheduler, "CPU", {"INFERENCE_NUM_THREADS": args.threads})
        self.loop, self.inbox, self.running, self.next_id = loop, queue.Queue(), {}, 0
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt, max_tokens):
        tokens = asyncio.Queue()
        self.inbox.put((prompt, max_tokens, tokens))
        return tokens

    def _admit(self, prompt, max_tokens, tokens):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        handle = self.pipeline.add_request(self.next_id, ids, config)
        self.running[self.next_id] = (handle, tokens)
        self.next_id += 1

    def _admit_all(self):
        if not self.running:
            self._admit(*self.inbox.get())
        while not self.inbox.empty():
            self._admit(*self.inbox.get())

    def _run(self):
        while True:
            self._admit_all()
            self.pipeline.step()
            news = []
            for number, (handle, tokens) in list(self.running.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        news.append((tokens, list(output.generated_ids)))
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    news.append((tokens, None))
                    del self.running[number]
            self.loop.call_soon_threadsafe(self._deliver, news)

    @staticmethod
    def _deliver(news):
        for tokens, ids in news:
            tokens.put_nowait(ids)


class Front:
    """HTTP as far as a load generator needs it: one request per connection."""

    def __init__(self, engine, vocabulary):
        self.engine = engine
        self.text = {number: token.replace(SPACE, " ") for token, number in vocabulary.items()}

    async def connection(self, reader, writer):
        try:
            method, _, body = await self._request(reader)
            if method == b"POST":
                await self._complete(json.loads(body), writer)
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    @staticmethod
    async def _request(reader):
        method, path, _ = (await reader.readline()).split(maxsplit=2)
        length = 0
        while (line := (await reader.readline()).strip()):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return method, path, await reader.readexactly(length)

    async def _complete(self, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                     b"Connection: close\r\n\r\n")
        tokens, made = self.engine.submit(request["prompt"], request["max_tokens"]), 0
        while (ids := await tokens.get()) is not None:
            made += len(ids)
            choice = {"index": 0, "text": "".join(self.text.get(number, "?") for number in ids),
                      "finish_reason": None}
            self._event(writer, {"object": "text_completion", "choices": [choice]})
            await writer.drain()
        prompt_tokens = len(request["prompt"])
        self._event(writer, {"object": "text_completion", "choices": [], "usage": {
            "prompt_tokens": prompt_tokens, "completion_tokens": made,
            "total_tokens": prompt_tokens + made}})
        writer.write(b"data: [DONE]\n\n")

    @staticmethod
    def _event(writer, body):
        writer.write(b"data: " + json.dumps(body).encode() + b"\n\n")


async def main():
    args = parse()
    vocabulary = json.loads(args.tokenizer.read_text())["model"]["vocab"]
    front = Front(Engine(args, asyncio.get_running_loop()), vocabulary)
    server = await asyncio.start_server(front.connection, "127.0.0.1", args.port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
