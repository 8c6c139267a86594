#!/usr/bin/env python3
"""Prints the functions that a token and a plan pass through, with line numbers, from the tables in
docs/structure.md. Fails when a function is not defined in the file that a table names, or when a
table names more files than FILES_MAX, which may only become smaller.
"""
import pathlib
import re
import sys

FILES_MAX = (26, 19)  # of a token, of a plan
ROW = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \| (.+) \|$", re.MULTILINE)


def line_of(text, function):
    """The line where `function`, written Class::Name, is defined. None: it is not defined here."""
    name = r"\b" + re.escape(function) + r"\("
    for number, line in enumerate(text.splitlines(), 1):
        if line and not line[0].isspace() and re.search(name, line) and not line.endswith(";"):
            return number
    return None


def walks(text):
    """The tables, each a list of rows; a table begins with step 1."""
    found = []
    for row in ROW.findall(text):
        if row[0] == "1":
            found.append([])
        if found:
            found[-1].append(row)
    return found


def check_walk(root, rows, files_max):
    problems = []
    if [int(row[0]) for row in rows] != list(range(1, len(rows) + 1)):
        problems.append("docs/structure.md: the steps are not numbered 1, 2, 3, ...")
    for number, file, function, what in rows:
        path = root / "src" / file
        line = line_of(path.read_text(), function) if path.exists() else None
        if line is None:
            problems.append(f"docs/structure.md: step {number}: src/{file} does not define {function}")
        print(f"{number:>3}  src/{file}:{line}  {function}: {what}")
    files = {row[1] for row in rows}
    print(f"{len(rows)} steps through {len(files)} files\n")
    if len(files) > files_max:
        problems.append(f"docs/structure.md: {len(files)} files, the limit is {files_max}")
    return problems


def main(root):
    found = walks((root / "docs/structure.md").read_text())
    if len(found) != len(FILES_MAX):
        return [f"docs/structure.md: {len(found)} walks, expected {len(FILES_MAX)}"]
    return [problem for rows, files_max in zip(found, FILES_MAX)
            for problem in check_walk(root, rows, files_max)]


def self_test():
    assert line_of("int x;\nvoid A::Run(int a) {\n", "A::Run") == 2
    assert line_of("  A::Run(1);\nvoid A::Run(int a);\n", "A::Run") is None


if __name__ == "__main__":
    self_test()
    found = main(pathlib.Path(__file__).resolve().parents[2])
    print("\n".join(found))
    sys.exit(1 if found else 0)
