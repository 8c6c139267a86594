"""The load: `millrace bench serve` against every server, with the same token ids for all."""
import dataclasses
import json
import pathlib
import subprocess
import tempfile

from common import PeerError

LOAD_WITHIN_S = 1200


@dataclasses.dataclass(frozen=True)
class Scenario:
    name: str
    input_tokens: int
    output_tokens: int
    clients: int
    requests: int


def scenarios(clients):
    return (Scenario("one", 128, 64, 1, 6), Scenario("many", 128, 64, clients, 4 * clients),
            Scenario("prefill", 512, 1, 1, 8))


def seed_of(scenario, seed):
    """Each scenario has prompts of its own: no server finds those of another in its prefix cache."""
    return seed * 1000 + sum(scenario.name.encode())


def load_command(binary, url, scenario, seed, folder):
    return [str(binary), "bench", "serve", "--base-url", url, "--model", "bench",
            "--dataset-name", "random", "--random-input-len", str(scenario.input_tokens),
            "--random-output-len", str(scenario.output_tokens), "--ignore-eos",
            "--num-prompts", str(scenario.requests), "--max-concurrency", str(scenario.clients),
            "--num-warmups", str(min(scenario.clients, 2)), "--seed", str(seed_of(scenario, seed)), "--disable-tqdm",
            "--save-result", "--result-dir", str(folder), "--result-filename", "result.json"]


def check(result, scenario):
    """Refuses a result whose requests are not the ones that the others answered."""
    expected = (scenario.requests, scenario.requests * scenario.input_tokens,
                scenario.requests * scenario.output_tokens)
    counted = tuple(result[key] for key in ("completed", "total_input_tokens",
                                            "total_output_tokens"))
    if counted != expected:
        raise PeerError(f"{scenario.name}: it completed {counted[0]} requests of {counted[1]} "
                        f"tokens with {counted[2]} of output; asked for were {expected[0]}, "
                        f"{expected[1]} and {expected[2]}")


def figures(result, scenario):
    """What the table needs, in milliseconds and tokens per second."""
    check(result, scenario)
    if scenario.name == "prefill":
        return {"prefill_tok_s": scenario.input_tokens / result["median_ttft_ms"] * 1e3}
    return {f"{scenario.name}_{key}": value for key, value in (
        ("ttft_mean_ms", result["mean_ttft_ms"]), ("ttft_ms", result["median_ttft_ms"]),
        ("tpot_ms", result["median_tpot_ms"]), ("tok_s", result["output_throughput"]))}


def measure(binary, url, scenario, seed):
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(load_command(binary, url, scenario, seed, folder), text=True,
                                  capture_output=True, check=False, timeout=LOAD_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{scenario.name}: not done within {LOAD_WITHIN_S} s") from error
        file = pathlib.Path(folder, "result.json")
        if done.returncode != 0 or not file.is_file():
            raise PeerError(f"{scenario.name}: the load generator failed: "
                            f"{(done.stderr or done.stdout).strip()[-300:]}")
        return figures(json.loads(file.read_text()), scenario)
