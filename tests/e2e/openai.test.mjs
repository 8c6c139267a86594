// Conformance: what the official OpenAI client sends, expects and maps to errors.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { startServer } from "./server.mjs";

let server;
let client;

before(async () => {
  server = await startServer();
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: "none", maxRetries: 0 });
});
after(async () => {
  assert.equal(await server.stop(), 0, "SIGTERM drains and exits 0");
});

const messages = [{ role: "user", content: "Tell me about the sea." }];
const greedy = { model: "demo", temperature: 0, max_tokens: 12 };

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test("models.list and models.retrieve", async () => {
  const list = await client.models.list();
  assert.deepEqual(list.data.map((m) => m.id), ["demo"]);
  assert.equal(list.data[0].object, "model");
  assert.ok(list.data[0].max_model_len > 0);
  assert.equal((await client.models.retrieve("demo")).id, "demo");
  await assert.rejects(client.models.retrieve("other"), OpenAI.NotFoundError);
});

test("a chat completion", async () => {
  const answer = await client.chat.completions.create({ ...greedy, messages });
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.choices.length, 1);
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.ok(["length", "stop"].includes(answer.choices[0].finish_reason));
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.ok(prompt_tokens > 0 && completion_tokens > 0 && completion_tokens <= 12);
  assert.equal(total_tokens, prompt_tokens + completion_tokens);
  assert.ok(answer.id.startsWith("chatcmpl-"));
});

test("a streamed chat completion says the same as a whole one", async () => {
  const whole = await client.chat.completions.create({ ...greedy, messages });
  const chunks = await collect(await client.chat.completions.create(
    { ...greedy, messages, stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  const text = chunks.map((c) => c.choices[0]?.delta?.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  const last = chunks.at(-1);
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
  const finishes = chunks.filter((c) => c.choices[0]?.finish_reason);
  assert.equal(finishes.length, 1);
  assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
});

test("the streaming helper of the client", async () => {
  const runner = client.chat.completions.stream({ ...greedy, messages });
  const final = await runner.finalChatCompletion();
  assert.ok(final.choices[0].message.content.length > 0);
});

test("completions: text, list, token ids, list of token ids", async () => {
  const one = await client.completions.create({ ...greedy, prompt: "In the beginning" });
  assert.equal(one.object, "text_completion");
  const two = await client.completions.create({ ...greedy, prompt: ["In the beginning", "And"] });
  assert.deepEqual(two.choices.map((c) => c.index), [0, 1]);
  assert.equal(two.choices[0].text, one.choices[0].text);
  const ids = await client.completions.create({ ...greedy, prompt: [10, 11, 12] });
  const lists = await client.completions.create({ ...greedy, prompt: [[10, 11, 12], [13]] });
  assert.equal(lists.choices[0].text, ids.choices[0].text);
});

test("echo and logprobs", async () => {
  const answer = await client.completions.create(
    { ...greedy, prompt: "In the beginning", echo: true, logprobs: 3, max_tokens: 4 });
  const choice = answer.choices[0];
  assert.ok(choice.text.startsWith("In the beginning"));
  const { tokens, token_logprobs, top_logprobs, text_offset } = choice.logprobs;
  assert.equal(tokens.length, token_logprobs.length);
  assert.equal(tokens.length, text_offset.length);
  assert.equal(tokens.length, top_logprobs.length);
  assert.equal(token_logprobs[0], null);
  assert.ok(token_logprobs.slice(1).every((x) => x <= 0));
  assert.equal(tokens.filter((t) => t !== "<|bos|>").join(""), choice.text);
});

test("chat logprobs", async () => {
  const answer = await client.chat.completions.create(
    { ...greedy, messages, logprobs: true, top_logprobs: 2 });
  const content = answer.choices[0].logprobs.content;
  assert.equal(content.length, answer.usage.completion_tokens);
  for (const entry of content) {
    assert.equal(entry.top_logprobs.length, 2);
    assert.equal(entry.logprob, entry.top_logprobs[0].logprob, "greedy takes the likeliest");
    assert.ok(Array.isArray(entry.bytes));
  }
});

test("n, seed and temperature", async () => {
  const ask = { model: "demo", messages, n: 3, seed: 7, temperature: 1, max_tokens: 10 };
  const first = await client.chat.completions.create(ask);
  const second = await client.chat.completions.create(ask);
  const texts = (answer) => answer.choices.map((c) => c.message.content);
  assert.deepEqual(texts(first), texts(second));
  assert.equal(new Set(texts(first)).size > 1, true, "the three differ from each other");
  const chunks = await collect(await client.chat.completions.create({ ...ask, stream: true }));
  const streamed = ["", "", ""];
  for (const chunk of chunks) {
    for (const choice of chunk.choices) streamed[choice.index] += choice.delta.content ?? "";
  }
  assert.deepEqual(streamed, texts(first));
});

test("stop strings never show", async () => {
  const free = await client.completions.create({ ...greedy, prompt: "And", max_tokens: 30 });
  const text = free.choices[0].text;
  const stop = text.slice(8, 12);
  const cut = await client.completions.create({ ...greedy, prompt: "And", max_tokens: 30, stop });
  assert.equal(cut.choices[0].text, text.slice(0, text.indexOf(stop)));
  assert.equal(cut.choices[0].finish_reason, "stop");
});

test("logit_bias can forbid and force", async () => {
  const forced = await client.completions.create(
    { ...greedy, prompt: "And", max_tokens: 3, logit_bias: { 300: 100 }, logprobs: 0 });
  assert.equal(new Set(forced.choices[0].logprobs.tokens).size, 1);
});

test("vLLM's extra fields", async () => {
  const answer = await client.completions.create({
    ...greedy, prompt: "And", temperature: 0.8, top_k: 5, min_p: 0.01, repetition_penalty: 1.1,
    ignore_eos: true, min_tokens: 12, seed: 1, priority: 0,
  });
  assert.equal(answer.usage.completion_tokens, 12);
  assert.equal(answer.choices[0].finish_reason, "length");
});

test("the prefix cache shows in usage and changes nothing", async () => {
  const prompt = "The quick brown fox jumps over the lazy dog. ".repeat(12);
  const cold = await client.completions.create({ ...greedy, prompt });
  const warm = await client.completions.create({ ...greedy, prompt });
  assert.equal(warm.choices[0].text, cold.choices[0].text);
  const cached = warm.usage.prompt_tokens_details.cached_tokens;
  assert.equal(cached, Math.floor((warm.usage.prompt_tokens - 1) / 16) * 16);
});

test("errors arrive typed, with the parameter named", async () => {
  const bad = (fields) => client.chat.completions.create({ ...greedy, messages, ...fields });
  const named = async (fields, param) => {
    const error = await bad(fields).then(() => assert.fail("accepted"), (e) => e);
    assert.ok(error instanceof OpenAI.BadRequestError, `${error}`);
    assert.equal(error.param, param);
    assert.ok(error.requestID);
  };
  await named({ temperature: -1 }, "temperature");
  await named({ n: 1000000 }, "n");
  await named({ top_logprobs: 99, logprobs: true }, "top_logprobs");
  await named({ max_tokens: "many" }, "max_tokens");
  await named({ logit_bias: { 99999999: 1 } }, "logit_bias");
  await named({ messages: [] }, "messages");
  await assert.rejects(bad({ model: "gpt-4" }), OpenAI.NotFoundError);
  const long = "word ".repeat(20000);
  const error = await bad({ messages: [{ role: "user", content: long }] }).catch((e) => e);
  assert.equal(error.code, "context_length_exceeded");
});

test("an aborted stream frees its blocks", async () => {
  const controller = new AbortController();
  const stream = await client.completions.create(
    { model: "demo", prompt: "And", max_tokens: 500, ignore_eos: true, stream: true },
    { signal: controller.signal });
  let seen = 0;
  try {
    for await (const _ of stream) if (++seen === 3) controller.abort();
  } catch (error) {
    assert.ok(error instanceof OpenAI.APIUserAbortError);
  }
  const running = async () => {
    const text = await (await fetch(`${server.url}/metrics`)).text();
    return Number(text.match(/^vllm:num_requests_running\{[^}]*\} (\S+)/m)[1]);
  };
  for (let i = 0; i < 100 && (await running()) > 0; ++i) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.equal(await running(), 0);
});

test("64 streams at once", async () => {
  const one = await client.completions.create({ ...greedy, prompt: "In the beginning" });
  const all = await Promise.all(Array.from({ length: 64 }, async () => {
    const chunks = await collect(await client.completions.create(
      { ...greedy, prompt: "In the beginning", stream: true }));
    return chunks.map((c) => c.choices[0]?.text ?? "").join("");
  }));
  assert.deepEqual(new Set(all), new Set([one.choices[0].text]));
});

test("embeddings", async () => {
  const input = ["And it came to pass", "Tell me about the sea."];
  const answer = await client.embeddings.create({ model: "demo", input });
  assert.deepEqual(answer.data.map((one) => one.index), [0, 1]);
  for (const [i, text] of input.entries()) {
    const alone = await client.embeddings.create(
      { model: "demo", input: text, encoding_format: "float" });
    assert.deepEqual(Array.from(answer.data[i].embedding), alone.data[0].embedding);
  }
  const length = Math.hypot(...answer.data[0].embedding);
  assert.ok(Math.abs(length - 1) < 1e-5, `${length}`);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens);
  await assert.rejects(client.embeddings.create({ model: "demo", input: [] }),
    OpenAI.BadRequestError);
});
