// Vercel's AI SDK: the default model of @ai-sdk/openai, which asks /v1/responses, its chat model, and
// the chat model of @ai-sdk/openai-compatible. Each goes through the same tests.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateObject, generateText, stepCountIs, streamObject, streamText,
  tool } from "ai";
import { z } from "zod";
import { startServer } from "./server.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

const prompt = "Tell me about the sea.";
const brief = { temperature: 0, maxOutputTokens: 16, maxRetries: 0 };
const roomy = { maxOutputTokens: 200, maxRetries: 0 };
const townSchema = z.object({
  name: z.string().max(12),
  people: z.number().int().min(0).max(99999),
  kind: z.enum(["port", "market"]),
});

let server;
let paths;  // of the requests so far
let providers;

before(async () => {
  server = await startServer();
  const watched = (url, init) => {
    paths.push(new URL(url).pathname);
    return fetch(url, init);
  };
  const settings = { baseURL: `${server.url}/v1`, apiKey: "none", fetch: watched };
  const openai = createOpenAI(settings);
  const compatible = createOpenAICompatible({ ...settings, name: "millrace",
    supportsStructuredOutputs: true, includeUsage: true });
  providers = {
    responses: { model: openai, path: "/v1/responses" },
    chat: { model: openai.chat, path: "/v1/chat/completions" },
    compatible: { model: compatible, path: "/v1/chat/completions" },
  };
});
after(async () => {
  assert.equal(await server.stop(), 0, "SIGTERM drains and exits 0");
});

function each(name, body) {
  for (const which of ["responses", "chat", "compatible"]) {
    test(`${which}: ${name}`, async () => {
      paths = [];
      const { model, path } = providers[which];
      await body(model);
      assert.deepEqual([...new Set(paths)], [path]);
    });
  }
}

each("a text", async (model) => {
  const { text, usage, finishReason } = await generateText({ ...brief, model: model("demo"), prompt });
  assert.ok(text.length > 0);
  assert.equal(finishReason, "length");
  assert.equal(usage.outputTokens, 16);
  assert.ok(usage.inputTokens > 0);
});

each("a stream says the same as the whole text", async (model) => {
  const whole = await generateText({ ...brief, model: model("demo"), system: "Be brief.", prompt });
  let most = 0;
  // On a busy machine one part may have all of the text.
  for (let tries = 0; tries < 5 && most < 2; ++tries) {
    const stream = streamText({ ...brief, model: model("demo"), system: "Be brief.", prompt });
    const parts = [];
    for await (const part of stream.textStream) parts.push(part);
    most = Math.max(most, parts.length);
    assert.equal(parts.join(""), whole.text);
    assert.equal((await stream.usage).outputTokens, 16);
    assert.equal(await stream.finishReason, "length");
  }
  assert.ok(most > 1);
});

each("an object of a schema", async (model) => {
  const { object } = await generateObject({ ...roomy, model: model("demo"), schema: townSchema,
    prompt: "A town?" });
  townSchema.parse(object);
});

each("Output.object", async (model) => {
  const { output } = await generateText({ ...roomy, model: model("demo"), prompt: "A town?",
    output: Output.object({ schema: townSchema }) });
  townSchema.parse(output);
});

each("an object that grows in a stream", async (model) => {
  const stream = streamObject({ ...roomy, model: model("demo"), schema: townSchema,
    prompt: "A town?" });
  const seen = [];
  for await (const partial of stream.partialObjectStream) seen.push(partial);
  assert.ok(seen.length > 1);
  assert.deepEqual(seen.at(-1), townSchema.parse(await stream.object));
});

const days = [];
const tools = {
  weather: tool({
    description: "The weather of a town",
    inputSchema: z.object({ town: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) }),
    execute: async (input) => {
      days.push(input.days);
      return `${input.days} days of sun in ${input.town}`;
    },
  }),
};
const withTool = {
  ...roomy, tools,
  // Without an end of its own the demo model calls on and on.
  providerOptions: { openai: { parallelToolCalls: false }, millrace: { parallel_tool_calls: false } }, stopWhen: stepCountIs(2), prompt: "The weather?",
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
};

each("a required tool is called, and its result answered", async (model) => {
  days.length = 0;
  const { steps, text } = await generateText({ ...withTool, model: model("demo") });
  assert.equal(steps.length, 2);
  assert.deepEqual(steps[0].toolCalls.map((c) => c.toolName), steps[0].toolResults.map(() => "weather"));
  assert.match(steps[0].toolResults[0].output, /^[1-9] days of sun in (Oslo|Rome)$/);
  assert.equal(days.length, steps[0].toolCalls.length);
  assert.ok(text.length > 0);
});

each("the same in a stream", async (model) => {
  const kinds = new Set();
  const stream = streamText({ ...withTool, model: model("demo") });
  for await (const part of stream.fullStream) kinds.add(part.type);
  for (const kind of ["tool-input-delta", "tool-call", "tool-result", "text-delta", "finish"]) {
    assert.ok(kinds.has(kind), `${kind} is among ${[...kinds].join(" ")}`);
  }
  assert.ok(!kinds.has("error"));
});

each("an unknown model is an error with its status", async (model) => {
  await assert.rejects(generateText({ ...brief, model: model("other"), prompt }), (error) => {
    assert.ok(APICallError.isInstance(error), String(error));
    assert.equal(error.statusCode, 404);
    assert.match(error.message, /other/);
    assert.equal(error.isRetryable, false);
    return true;
  });
});

each("a schema that no grammar can hold is an error that names the keyword", async (model) => {
  const schema = z.object({ name: z.string() }).meta({ not: { required: ["error"] } });
  await assert.rejects(generateObject({ ...brief, model: model("demo"), schema, prompt }), (error) => {
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /not/);
    return true;
  });
});
