// Starts the real program on a free port of the loopback interface, and stops it again.
import { spawn } from "node:child_process";
import { once } from "node:events";

const binary = process.env.MILLRACE_BINARY;
const model = process.env.MILLRACE_MODEL;

export async function startServer(...flags) {
  const child = spawn(binary, ["serve", model, "--host", "127.0.0.1", "--port", "0",
    "--served-model-name", "demo", ...flags], { stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  const url = await new Promise((resolve, reject) => {
    const look = (data) => {
      output += data;
      const found = output.match(/https?:\/\/127\.0\.0\.1:\d+/);
      if (found) resolve(found[0]);
    };
    child.stdout.on("data", look);
    child.stderr.on("data", look);
    child.on("exit", (code) => reject(new Error(`the server exited with ${code}:\n${output}`)));
  });
  await untilReady(url);
  return {
    url,
    child,
    output: () => output,
    async stop() {
      if (child.exitCode !== null) return child.exitCode;
      child.kill("SIGTERM");
      const [code] = await once(child, "exit");
      return code;
    },
  };
}

async function untilReady(url) {
  for (let attempt = 0; attempt < 600; ++attempt) {
    try {
      if ((await fetch(`${url}/ready`)).status === 200) return;
    } catch {
      // not listening yet
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${url}/ready did not become 200 within 30 s`);
}
