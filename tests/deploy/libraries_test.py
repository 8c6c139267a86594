#!/usr/bin/env python3
"""The packages that deploy/README.md and the image install have every library of the program.

Usage: libraries_test.py PROGRAM [unittest arguments]
"""
import os
import pathlib
import re
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import processes  # noqa: E402
from harness.cases import ROOT, take_paths  # noqa: E402

DEPLOY = ROOT / "deploy"
PROGRAM, = take_paths(1)


class Libraries(unittest.TestCase):
    def test_the_libraries_are_all_that_the_program_needs(self):
        listed = [set(re.findall(r"(?:lib|coinor-lib|zlib)[\w.+-]+", re.search(
            r"no-install-recommends ((?:.*\\\n)*.*)", path.read_text()).group(1)))
                  for path in (DEPLOY / "README.md", DEPLOY / "container" / "Containerfile")]
        self.assertEqual(*listed)
        if shutil.which("dpkg-query") is None:
            self.skipTest("not a Debian")
        needed = set()
        for line in processes.run("ldd", PROGRAM, status=None).stdout.splitlines():
            path = re.search(r"=> (/\S+)", line)
            if path:
                owner = processes.run("dpkg-query", "-S", os.path.realpath(path.group(1)), status=None).stdout
                needed.add(owner.partition(":")[0])
        known, new = set(), set(listed[0])
        while new:
            known |= new
            depends = processes.run("dpkg-query", "-W", "-f=${Depends},${Pre-Depends},", *sorted(new),
                                    status=None).stdout
            new = {re.split(r"[ (:]", d.strip())[0]
                   for d in re.split(r"[,|]", depends) if d.strip()} - known
        self.assertLessEqual(needed - {""}, known)


if __name__ == "__main__":
    unittest.main()
