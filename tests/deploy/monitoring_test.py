#!/usr/bin/env python3
"""The alert rules and the board: promtool accepts and runs the rules, and both name only series that
/metrics of a running server has, with labels that these have.

Usage: monitoring_test.py PROGRAM [unittest arguments]
"""
import functools
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import prometheus  # noqa: E402
from harness.cases import DEMO, ROOT, take_paths  # noqa: E402
from harness.processes import Server, run  # noqa: E402
from harness.waiting import wait_for  # noqa: E402

PROGRAM, = take_paths(1)
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
BOARD = ROOT / "deploy" / "grafana" / "millrace.json"
# scripts/setup unpacks it there.
UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin" / "promtool"
SERIES = re.compile(r"\b((?:vllm:|millrace_|http_)\w+)(\{[^}]*\})?")
SCRAPE_LIMIT_S = 10
BY = re.compile(r"\b(?:by|on) ?\(([^)]*)\)")
LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")


def promtool(*words):
    tool = UNPACKED if UNPACKED.exists() else shutil.which("promtool")
    if tool is None:
        raise AssertionError("there is no promtool; scripts/setup test brings it")
    run(tool, *words)


def expressions():
    """(where, expression, labels that texts beside it use)."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            text = " ".join(rule["annotations"].values())
            yield rule["alert"], rule["expr"], re.findall(r"\$labels\.(\w+)", text)
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], LEGEND_LABEL.findall(target["legendFormat"])


class Monitoring(unittest.TestCase):
    @functools.cached_property
    def scraped(self):
        server = Server(PROGRAM, "serve", DEMO, "--slo", "ttft=2s", "tpot=80ms", "attainment=90%")
        self.addCleanup(server.stop)
        server.wait_until_ready()
        server.post("/v1/completions", {"prompt": "Once", "max_tokens": 4})
        return prometheus.parse(wait_for(  # an answer counts once it is written
            lambda: "http_requests_total" in (text := server.get("/metrics")[1]) and text,
            "http_requests_total", SCRAPE_LIMIT_S))

    def labels_of(self, name):
        return set().union(*({label for label, _ in key[1]} for key in self.scraped
                             if key[0] == name))

    def test_series_and_labels_exist(self):
        names = {key[0] for key in self.scraped}
        seen = 0
        for where, expression, shown in expressions():
            series = SERIES.findall(expression)
            self.assertTrue(series, where)
            labels = set()
            for name, selector in series:
                seen += 1
                with self.subTest(where=where, series=name):
                    self.assertIn(name, names)
                    for label in re.findall(r"(\w+)(?:=~|!=|!~|=)\"", selector):
                        self.assertIn(label, self.labels_of(name))
                labels |= self.labels_of(name)
            for group in BY.findall(expression):
                for label in filter(None, (word.strip() for word in group.split(","))):
                    self.assertIn(label, labels, where)
            self.assertLessEqual(set(shown), labels, where)
        self.assertGreater(seen, 50)

    def test_the_rules(self):
        promtool("check", "rules", str(RULES))
        with tempfile.TemporaryDirectory() as folder:
            for file in (RULES, ROOT / "tests" / "deploy" / "rules_test.yaml"):
                shutil.copy(file, folder)
            promtool("test", "rules", f"{folder}/rules_test.yaml")

    def test_each_alert_has_an_example_and_a_cure(self):
        tested = re.findall(r"alertname: (\w+)", (ROOT / "tests/deploy/rules_test.yaml").read_text())
        for group in yaml.safe_load(RULES.read_text())["groups"]:
            for rule in group["rules"]:
                self.assertGreaterEqual(tested.count(rule["alert"]), 2, rule["alert"])
                self.assertTrue(rule["annotations"]["cure"], rule["alert"])

    def test_the_board_has_no_overlap(self):
        board = json.loads(BOARD.read_text())
        self.assertEqual(len({p["id"] for p in board["panels"]}), len(board["panels"]))
        taken = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                     for y in range(at["y"], at["y"] + at["h"])}
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
