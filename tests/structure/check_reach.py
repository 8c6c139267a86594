#!/usr/bin/env python3
"""Fails when a source of src/ is linked by nothing but tests and experiments.

Usage: check_reach.py COMPILE_COMMANDS LINK_MAP

A static library gives a program only the objects that it needs, so the link map of `millrace` tells
what the program reaches. Every other object of a library of src/ must be listed in unreached.txt
with the command that will reach it, and a listed source must not be linked. Left out is what tests
need: libraries of helpers (named *_testing, or with all sources in a folder testing/) and of
reference kernels (*_ref).

Builds that compile several sources at once link several at once too. Listed sources are kept apart
there (cmake/Millrace.cmake), but an unlisted one is not noticed beside others that are linked. The
dev build compiles every source alone, so there the check is exact. Each run first proves that the
check can fail.
"""
import collections
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = "tests/structure/unreached.txt"
OBJECT = re.compile(r"CMakeFiles/(millrace_\w+)\.dir/(?:\S*/)?([^/\s]+\.o)$")
MEMBER = re.compile(r"\blib(millrace_\w+)\.a\(([^()\s]+\.o)\)")
BATCH = re.compile(r"_batch\d+\.cc$")  # a generated file that includes several sources
COMMAND = re.compile(r"millrace [a-z]")


def sources_of(file):
    """The sources of the tree that an object is compiled from; none if a generator wrote it."""
    path = pathlib.Path(file)
    if BATCH.search(path.name):
        return re.findall(r'#include "(.+)"', path.read_text())
    try:
        return [str(path.resolve().relative_to(ROOT))]
    except ValueError:
        return []


def library_objects(entries):
    """{(library, object): its sources in src/} of what may end in a program."""
    objects = collections.defaultdict(list)
    for entry in entries:
        match = OBJECT.search(entry["output"] if "output" in entry else
                              re.search(r" -o (\S+)", entry["command"])[1])
        # What options of this build leave out is known to CMake in libraries named so.
        if match and not match[1].endswith("_unbuilt"):
            objects[match.groups()] += [s for s in sources_of(entry["file"])
                                        if s.startswith("src/")]
    support = {library for library, _ in objects if library.endswith(("_testing", "_ref"))}
    for library in {library for library, _ in objects} - support:
        sources = [s for (other, _), held in objects.items() if other == library for s in held]
        if sources and all("/testing/" in s for s in sources):
            support.add(library)
    return {key: held for key, held in objects.items() if held and key[0] not in support}


def parse_list(text):
    """The listed sources, and what is wrong with the list itself."""
    listed, problems = set(), []
    for number, line in enumerate(text.split("\n"), 1):
        source, _, command = line.partition(" ")
        if not source or source.startswith("#"):
            continue
        if not COMMAND.match(command.strip()):
            problems.append(f"{LIST}:{number}: {source}: name the command that will reach it")
        if source in listed:
            problems.append(f"{LIST}:{number}: {source} is listed twice")
        listed.add(source)
    return listed, problems


def violations(objects, linked, listed):
    """What the list and the link disagree about. `linked`: (library, object) of the link map."""
    if not any(key in linked for key in objects):
        yield "the link map names no library of src/; is it that of millrace?"
        return
    for key, sources in sorted(objects.items()):
        if len(sources) > 1 and not BATCH.search(key[1].removesuffix(".o")):
            yield f"{key[0]}: {' and '.join(sources)} need different names"
        for source in sources:
            if key in linked and source in listed:
                also = " (or another of its batch; the dev build tells which)"
                yield (f"{source}: the program links it; delete its line in {LIST}"
                       + (also if len(sources) > 1 else ""))
            if key not in linked and source not in listed:
                yield (f"{source}: the program does not link it; delete it, move it to "
                       f"experiments/lib, or add it to {LIST} with the command that will reach it")


def self_test():
    objects = {("millrace_plan", "a.cc.o"): ["src/plan/a.cc"],
               ("millrace_plan", "b.cc.o"): ["src/plan/b.cc"]}
    linked = set(MEMBER.findall("2a0 2a0 10 1 src/plan/libmillrace_plan.a(a.cc.o):(.text)\n"))
    assert linked == {("millrace_plan", "a.cc.o")}
    assert not list(violations(objects, linked, {"src/plan/b.cc"}))
    assert len(list(violations(objects, linked, set()))) == 1, "unlisted"
    assert len(list(violations(objects, linked, {"src/plan/a.cc", "src/plan/b.cc"}))) == 1, "linked"
    assert len(list(violations(objects, set(), {"src/plan/b.cc"}))) == 1, "another map"
    assert parse_list("# why\n\nsrc/a.cc  millrace plan --roles\n") == ({"src/a.cc"}, [])
    assert len(parse_list("src/a.cc\n")[1]) == 1, "no command"
    entry = {"command": "c++ -o src/plan/CMakeFiles/millrace_plan.dir/io/a.cc.o -c a.cc",
             "file": str(ROOT / "src/plan/io/a.cc")}
    assert library_objects([entry]) == {("millrace_plan", "a.cc.o"): ["src/plan/io/a.cc"]}
    entry["command"] = entry["command"].replace("millrace_plan.dir", "millrace_plan_testing.dir")
    assert not library_objects([entry]), "helpers of tests"


def main(compile_commands, link_map):
    self_test()
    listed, problems = parse_list((ROOT / LIST).read_text())
    problems += [f"{LIST}: there is no {source}" for source in sorted(listed)
                 if not (ROOT / source).is_file()]
    objects = library_objects(json.loads(pathlib.Path(compile_commands).read_text()))
    with open(link_map, errors="replace") as lines:
        linked = {key for line in lines for key in MEMBER.findall(line)}
    problems += violations(objects, linked, listed)
    print("\n".join(problems) or f"reach: {len(objects)} objects, {len(listed)} sources to reach")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
