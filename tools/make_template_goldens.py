#!/usr/bin/env python3
"""Render the small templates of src/text/testdata/jinja with Jinja2, set up as transformers sets it up.

    python3 tools/make_template_goldens.py [--folder src/text/testdata/jinja]

Reads templates.txt and variables.json and writes goldens.jsonl, a row for each template: its text
as "out", "error" where Jinja2 fails, "refused" where Jinja2 renders what Millrace says it does not.
"""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/clients"))
from jinja_reference import environment  # noqa: E402


def sources(path):
    """Each template, and whether Millrace refuses it."""
    refused = False
    with open(path) as file:
        for line in file:
            line = line.rstrip("\n")
            if line.startswith("# "):
                refused = line.startswith("# Refused")
            elif line:
                yield line.replace("↵", "\n"), refused


def row(env, source, variables, refused):
    if refused:
        return {"source": source, "refused": True}
    try:
        return {"source": source, "out": env.from_string(source).render(**variables)}
    except Exception:  # whatever a template raises
        return {"source": source, "error": True}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="src/text/testdata/jinja")
    folder = parser.parse_args().folder
    with open(f"{folder}/variables.json") as file:
        variables = json.load(file)
    env = environment()
    with open(f"{folder}/goldens.jsonl", "w") as out:
        for source, refused in sources(f"{folder}/templates.txt"):
            out.write(json.dumps(row(env, source, variables, refused), ensure_ascii=False) + "\n")


main()
