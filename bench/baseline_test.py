"""What bench/baseline.py reads and when it complains."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import baseline

TABLES = """Medians of 3.

| kernel | of bandwidth | of FMA peak | of tile peak |
|---|---|---|---|
| gemv | 124 % | 8 % | 0 % |
| gemm | 14 % | 477 % | 31 % |

| what | GB/s |
|---|---|
| raw socket | 4.90 (1.0 to 5.0) |
"""


class Baseline(unittest.TestCase):
    def compare(self, kept, now):
        with contextlib.redirect_stdout(io.StringIO()):
            return baseline.compare(kept, now)

    def test_tables_are_read_by_their_columns(self):
        rows = list(baseline.tables(TABLES))
        self.assertEqual([row.get("kernel") for row in rows], ["gemv", "gemm", None])
        self.assertEqual(baseline.number(rows[1]["of FMA peak"]), 4.77)
        self.assertEqual(baseline.number(rows[2]["GB/s"]), 4.9)

    def test_a_fifth_less_is_worse(self):
        self.assertEqual(self.compare({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 0.79, "b": 0.81, "c": 3.0}), ["a"])

    def test_a_row_that_is_gone_is_worse_and_a_new_one_is_not(self):
        self.assertEqual(self.compare({"a": 1.0}, {"b": 1.0}), ["a"])

    def test_what_is_kept_is_read_again(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "kind.tsv"
            baseline.write(path, "kind", {"gemm m=4, qkv 2048 -> 3072": 1.3456})
            self.assertEqual(baseline.read(path), {"gemm m=4, qkv 2048 -> 3072": 1.3456})

    def test_every_kept_file_is_of_a_kind_and_has_rows(self):
        for path in (pathlib.Path(__file__).parent / "baseline").glob("*.tsv"):
            self.assertGreater(len(baseline.read(path)), 50, path)
            self.assertTrue(path.read_text().startswith(f"# {path.stem}: "), path)


if __name__ == "__main__":
    unittest.main()
