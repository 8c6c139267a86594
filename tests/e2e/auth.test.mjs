// API keys and request ids, as the official client sends them.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { startServer } from "./server.mjs";

let server;
before(async () => {
  server = await startServer("--api-key", "first-key", "--api-key", "second-key");
});
after(() => server.stop());

const ask = (apiKey) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey, maxRetries: 0 });

test("either key opens, another does not", async () => {
  for (const key of ["first-key", "second-key"]) {
    assert.equal((await ask(key).models.list()).data.length, 1);
  }
  for (const key of ["first-ke", "first-key2", "x"]) {
    await assert.rejects(ask(key).models.list(), OpenAI.AuthenticationError);
  }
});

test("/health is open, a crafted path is not a way round", async () => {
  assert.equal((await fetch(`${server.url}/health`)).status, 200);
  for (const path of ["/v1/models?x=/health", "//v1/models", "/V1/models", "/%761/models"]) {
    assert.notEqual((await fetch(server.url + path)).status, 200, path);
  }
});

test("a request id is echoed or made", async () => {
  const headers = { authorization: "Bearer first-key", "x-request-id": "abc-1" };
  const echoed = await fetch(`${server.url}/v1/models`, { headers });
  assert.equal(echoed.headers.get("x-request-id"), "abc-1");
  const made = await fetch(`${server.url}/health`);
  assert.ok(made.headers.get("x-request-id").length > 8);
});
