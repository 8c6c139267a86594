#!/usr/bin/env python3
"""Fails on untidiness that reviews miss.

Unwired tests and sources (given a compile_commands.json), lines over 100 columns, files over 800
lines, folder READMEs missing or over 40 lines, words left for later, disabled tests, paths of a
machine, links of pages that lead nowhere, paths in their tables that do not exist. Whether a file is
one idea is for a reviewer to say.
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HISTORIES = ("docs/decisions", "docs/glossary.md", "CHANGELOG.md")  # may name what is gone
COLUMNS_MAX = 100
FILE_LINES_MAX = 800
README_LINES_MAX = 40
# Put together from parts so that this file does not find itself.
LEFT_OPEN = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
DISABLED = re.compile(r"GTEST_" r"SKIP|DISA" r"BLED_|\.skip\(|#\[ig" r"nore")
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.$])/(work|root|home)/[A-Za-z]")
# The source of a test whose data lies beside the checkout where there is any.
ON_REQUEST = re.compile(r"src/text/vectors_full_test\.cc")
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)")  # to a file of the tree
BATCH = re.compile(r"_batch\d+\.cc$")  # a generated file that includes several sources
CODE = (".cc", ".h", ".rs", ".py", ".mjs")


def tracked():
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           cwd=ROOT, capture_output=True, check=True).stdout
    return [p for p in map(pathlib.PurePath, filter(None, names.decode().split("\0")))
            if (ROOT / p).is_file()]


def unwired(files, compile_commands):
    """C++ sources that the build's compile_commands.json does not hold: nothing builds them."""
    built = {pathlib.Path(entry["file"]).resolve() for entry in json.loads(compile_commands)}
    for batch in [path for path in built if BATCH.search(path.name)]:
        included = re.findall(r'#include "(.+)"', batch.read_text())
        built |= {(ROOT / name).resolve() for name in included}
    for path in files:
        if path.suffix != ".cc" or (ROOT / path).resolve() in built:
            continue
        # Built by a preset or an option of their own, if their folder's list names them.
        if path.parts[0] == "fuzz" or ON_REQUEST.fullmatch(str(path)):
            listed = (ROOT / path.parts[0] / (path.parts[1] if path.parts[0] == "src" else "")
                      / "CMakeLists.txt").read_text()
            if re.search(rf"\b{re.escape(path.stem)}\b", listed):
                continue
        yield f"{path}: no target builds it"


def text_problems(path):
    text = (ROOT / path).read_text(errors="replace")
    lines = text.split("\n")
    if path.suffix in (".cc", ".h"):
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS_MAX and "http" not in line and "R\"" not in line:
                yield f"{path}:{number}: {len(line)} columns, the limit is {COLUMNS_MAX}"
    if path.suffix in CODE:
        if len(lines) > FILE_LINES_MAX:
            yield f"{path}: {len(lines)} lines, split it by meaning ({FILE_LINES_MAX} at most)"
        for pattern, why in ((LEFT_OPEN, "left open"), (DISABLED, "disabled test")):
            match = pattern.search(text)
            if match:
                yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {why}: {match.group(0)}"
    for target in LINK.findall(text) if path.suffix == ".md" else ():
        if not (ROOT / path.parent / target).exists():
            yield f"{path}: links to {target}, which does not exist"
    if MACHINE_PATH.search(text):
        yield f"{path}: names a path of one machine"


def path_of(word, tops, folder):
    """Whether a word of a table names a file or folder of this repository."""
    if not re.fullmatch(r"[\w.*+-]+(/[\w.*+-]+)*/?", word) or word.startswith("build/"):
        return False  # what a build makes may not be there yet
    if "/" in word and (word.split("/")[0] in tops or (folder / word.split("/")[0]).exists()):
        return True
    return re.search(r"[\w*]\.(h|cc|py|proto|inc|rs)$", word) is not None


def table_paths(path, tops):
    """Paths that the tables of a page name and that do not exist. They may begin at the repository,
    at src, at the page, or at a folder that the row has named."""
    folder = ROOT / path.parent
    for number, line in enumerate((ROOT / path).read_text().split("\n"), 1):
        bases = [ROOT, ROOT / "src", folder]
        for word in re.findall(r"`([^`]+)`", line) if line.startswith("|") else ():
            if not path_of(word, tops, folder):
                continue
            found = [base for base in bases if any(base.glob(word.rstrip("/")))
                     or any(base.glob(word + ".*"))]
            if found:
                bases += [found[0] / word, (found[0] / word).parent]
            elif "/" in word or not any(folder.rglob(word)):
                yield f"{path}:{number}: its table names {word}, which does not exist"


def readmes():
    for folder in sorted([*(ROOT / "src").iterdir(), *(ROOT / "experiments/lib").iterdir()]):
        if not folder.is_dir():
            continue
        name = folder.relative_to(ROOT)
        readme = folder / "README.md"
        if not readme.is_file():
            yield f"{name}: no README.md"
        elif len(readme.read_text().splitlines()) > README_LINES_MAX:
            yield f"{name}/README.md: more than {README_LINES_MAX} lines"


def main():
    files = tracked()
    problems = list(readmes())
    tops = {p.name for top in (ROOT, ROOT / "src") for p in top.iterdir()}
    for path in files:
        if path.suffix == ".md" and not str(path).startswith(HISTORIES) and "testdata" not in path.parts:
            problems += table_paths(path, tops)
    if len(sys.argv) > 1:
        problems += unwired(files, pathlib.Path(sys.argv[1]).read_text())
    for path in files:
        if path.suffix in CODE + (".md", ".txt", ".cmake", ".toml", ".json", ".sh", ""):
            if "testdata" in path.parts or "goldens" in path.parts or path.suffix == ".lock":
                continue
            problems += text_problems(path)
    print("\n".join(problems) or "tidy: no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
