// Every curl command and every program in the documents runs against the real server; every option
// of a documented millrace command is one that the command knows.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { startServer } from "./server.mjs";

const run = promisify(execFile);
const root = join(import.meta.dirname, "../..");
const documents = ["README.md",
  ...readdirSync(join(root, "docs")).filter((f) => f.endsWith(".md")).map((f) => `docs/${f}`)];

function blocks(document, language) {
  const text = readFileSync(join(root, document), "utf8");
  return [...text.matchAll(/^```(\w+)\n([\s\S]*?)^```/gm)]
    .filter((m) => m[1] === language).map((m) => m[2]);
}

// Commands of a shell block: continued lines joined, comments dropped.
const commands = (block) => block.replaceAll("\\\n", " ").split("\n")
  .map((line) => line.replace(/\s+#\s.*$/, "").trim()).filter(Boolean);

let server;
const runtime = mkdtempSync(join(tmpdir(), "millrace-docs-"));
process.env.XDG_RUNTIME_DIR = runtime;  // of the server's admin socket, and of the commands
before(async () => {
  server = await startServer();
});
after(async () => {
  await server.stop();
  rmSync(runtime, { recursive: true });
});

// Other machines' addresses: cluster_page.py follows those commands, in namespaces of its own.
const elsewhere = /http:\/\/10\.77\./;

const here = (text) => text.replaceAll(/http:\/\/(127\.0\.0\.1|localhost):8000/g, server.url)
  .replaceAll("admin-8000.sock", `admin-${new URL(server.url).port}.sock`);

for (const document of documents) {
  for (const block of blocks(document, "sh")) {
    for (const command of commands(block).filter((c) => c.startsWith("curl ") && !elsewhere.test(c))) {
      test(`${document}: ${command.slice(0, 70)}`, async () => {
        const { stdout } = await run("bash", ["-c", `${here(command)} --fail-with-body -sS`]);
        assert.ok(stdout.length > 0, "an answer");
        assert.ok(!/"error":\s*[{"]/.test(stdout), stdout.slice(0, 400));
      });
    }
  }
  for (const block of blocks(document, "sh")) {
    for (const command of commands(block)) {
      const words = command.split(/\s+/);
      const at = words.findIndex((w) => /(^|\/)millrace$/.test(w));
      if (at < 0 || words.slice(0, at).some((w) => !w.includes("="))) continue;
      const verbs = words.slice(at + 1).filter((w, i, all) =>
        !w.startsWith("-") && (i === 0 || (i === 1 && ["bench", "cluster", "plan"].includes(all[0]))));
      const options = words.slice(at + 1).filter((w) => w.startsWith("--")).map((w) => w.split("=")[0]);
      test(`${document}: ${command.slice(0, 70)}`, async () => {
        const { stdout } = await run(process.env.MILLRACE_BINARY, [...verbs, "--help"]);
        for (const option of options) {
          if (option === "--help") continue;
          assert.ok(stdout.includes(option) || stdout.includes(`--[no-]${option.replace(/^--(no-)?/, "")}`),
            `${verbs.join(" ")} --help does not know ${option}`);
        }
      });
    }
  }
  blocks(document, "js").forEach((block, i) => {
    test(`${document}: program ${i + 1}`, async () => {
      const file = join(import.meta.dirname, `.from-docs-${i}.mjs`);
      writeFileSync(file, here(block));
      try {
        const { stdout } = await run(process.execPath, [file]);
        assert.ok(stdout.trim().length > 0, "it prints an answer");
      } finally {
        rmSync(file);
      }
    });
  });
}
