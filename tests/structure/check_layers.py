#!/usr/bin/env python3
"""Fails when a folder of src/ includes a folder of its own or a higher level.

The levels are those of docs/structure.md: a folder may include only folders of lower levels, never
sideways, and no folder beside src/. The folders inside a folder have levels of their own, at every
depth (SUB_LEVELS); tests may include everything of their folder, and no one else what is in testing/.
A folder has at most FILES_MAX sources and headers side by side. A folder of experiments/lib may
include src/ below the program, and nothing else of experiments/. Each run first proves that the check
can fail.
"""
import pathlib
import re
import sys

LEVELS = {
    "base": 0,
    "core": 1,
    "kv": 2, "tensor": 2, "text": 2, "net": 2, "cost": 2, "wire": 2,
    "sched": 3, "model": 3, "plan": 3, "notice": 3,
    "stage": 4,
    "cluster": 5,
    "sim": 6, "serve": 6,
    "ops": 7,
    "apps": 8,
}
# Of every folder that has folders; "": the files directly in it. "testing" is for tests alone.
SUB_LEVELS = {
    "apps": {
        "cli": 0,
        "common": 1, "bench": 1,
        "plan": 2, "verify": 2,
        "cluster": 3, "simulate": 3,
        "profile": 4, "autopilot": 4, "drill": 4, "fleet": 4,
        "commands": 5,
        "": 6,
    },
    "cluster": {
        "": 0,
        "journal": 1, "store": 1, "link": 1, "transfer": 1,
        "worker": 2, "control": 2,
        "runtime": 3, "autopilot": 3,
        "fleet": 4,
    },
    "cluster/control": {
        "parts": 0, "layout": 1, "routing": 2, "pipelines": 3, "transfers": 4,
        "lifecycle": 5, "": 6,
    },
    "model": {"": 0, "arch": 1},
    "ops": {"process": 0, "hub": 0, "profile": 0, "cluster": 0, "autopilot": 1, "fleet": 1},
    "net": {"": 0, "http": 1, "collective": 1, "data": 1},
    "plan": {"flow": 0, "io": 1, "spot": 1, "estimate": 1, "roles": 2, "distserve": 3, "": 4},
    "serve": {
        "http": 0, "request": 1, "observe": 1, "answer": 2, "apis": 3, "generation": 3,
        "stored": 4, "": 5,
    },
    "sim": {
        "load": 0, "machines": 1, "record": 1, "fast": 2, "report": 3, "cluster": 4,
        "autopilot": 5, "": 6,
    },
    "tensor": {"": 0, "cpu": 1, "devices": 2},
}
FILES_MAX = 50  # sources and headers of the product directly in a folder
WIDE = {"sched", "tensor/cpu"}  # one small thing to a file
LIBRARIES = "experiments/lib"
LIBRARIES_LEVEL_MAX = 6  # whatever a library of src/ can be
BESIDE = {"bench", "experiments", "fuzz", "tests"}  # folders beside src/ that have headers
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"/]+)/([^"]*)"', re.MULTILINE)


def line_of(text, match):
    return text.count("\n", 0, match.start()) + 1


def for_tests(name):
    return name.endswith("_test.cc") or "testing" in name or "/testdata" in name


def violations(folder, name, text):
    """Yields one line per include in `text` (of file `name` in `folder`) that breaks the order."""
    for match in INCLUDE.finditer(text):
        other = match.group(1)
        if other in BESIDE:
            yield f"{name}:{line_of(text, match)}: src/ includes {other}/"
        if for_tests(f"/{match.group(2)}") and not for_tests(name):
            yield (f"{name}:{line_of(text, match)}: includes {other}/{match.group(2)}, which is for "
                   "tests alone")
        if other == folder:
            yield from inner_violations(name, text, match)
        if other == folder or other not in LEVELS:
            continue
        if LEVELS[other] >= LEVELS[folder]:
            yield (f"{name}:{line_of(text, match)}: {folder} (level {LEVELS[folder]}) includes "
                   f"{other} (level {LEVELS[other]})")


def inner_violations(name, text, match):
    """The same for an include between the folders inside one folder, at any depth."""
    own, to = name.split("/")[1:-1], f"{match.group(1)}/{match.group(2)}".split("/")[:-1]
    depth = next((i for i, (a, b) in enumerate(zip(own, to)) if a != b), min(len(own), len(to)))
    if own == to or for_tests(name):
        return
    levels = SUB_LEVELS.get("/".join(own[:depth]))
    if levels is None:  # a folder whose only folders are for tests
        return
    room, other = (folders[depth] if depth < len(folders) else "" for folders in (own, to))
    if other != "testing" and levels.get(other, -1) >= levels.get(room, -1):
        yield (f"{name}:{line_of(text, match)}: {'/'.join(own)} includes {'/'.join(to)}, which is "
               "not below it")


def room_violations(folder, names):
    """Of one folder, named relative to src/, and the names of all that is directly in it."""
    files = [n for n in names if n.endswith((".cc", ".h")) and not for_tests(f"{folder}/{n}")]
    if len(files) > FILES_MAX and folder not in WIDE:
        yield f"src/{folder}: {len(files)} files side by side; at most {FILES_MAX} may be"
    rooms = {n for n in names if "." not in n and n not in ("testing", "testdata")}
    for room in sorted(rooms - set(SUB_LEVELS.get(folder, {}))):
        yield f"src/{folder}/{room}: not in SUB_LEVELS in {__file__}"


def library_violations(folder, name, text):
    """The same for a folder of experiments/lib."""
    for match in INCLUDE.finditer(text):
        other, rest = match.groups()
        own = other == "experiments" and rest.startswith(f"lib/{folder}/")
        if other in BESIDE and not own:
            yield f"{name}:{line_of(text, match)}: {LIBRARIES}/{folder} includes {other}/{rest}"
        if LEVELS.get(other, 0) > LIBRARIES_LEVEL_MAX:
            yield f"{name}:{line_of(text, match)}: {LIBRARIES}/{folder} includes the program"


def check(root):
    found = []
    for path in sorted((root / "src").iterdir()):
        if path.is_file():
            if path.name != "README.md":
                found.append(f"src/{path.name}: every source file belongs to a folder")
            continue
        if path.name not in LEVELS:
            found.append(f"src/{path.name}: not in the list of levels in {__file__}")
            continue
        for folder in [path, *sorted(p for p in path.rglob("*") if p.is_dir())]:
            name = str(folder.relative_to(root / "src"))
            if not for_tests(f"{name}/"):
                found += room_violations(name, [p.name for p in folder.iterdir()])
        for file in sorted(path.rglob("*")):
            if file.suffix in (".h", ".cc"):
                found += violations(path.name, str(file.relative_to(root)), file.read_text())
    for path in sorted((root / LIBRARIES).iterdir()):
        for file in sorted(path.rglob("*")):
            if file.suffix in (".h", ".cc"):
                name = str(file.relative_to(root))
                found += library_violations(path.name, name, file.read_text())
    return found


def self_test():
    assert list(violations("kv", "x.h", '#include "sched/scheduler.h"\n'))
    assert list(violations("kv", "x.h", '#include "tensor/device.h"\n')), "sideways"
    assert list(violations("sim", "x.h", '#include "experiments/lib/helix/a.h"\n')), "out of src"
    assert not list(violations("sched", "x.h", '#include "kv/pool.h"\n#include <vector>\n'))
    control = "src/cluster/control/x.h"
    assert list(violations("cluster", control, '#include "cluster/runtime/a.h"\n'))
    assert list(violations("cluster", control, '#include "cluster/worker/a.h"\n')), "sideways"
    assert not list(violations("cluster", control, '#include "cluster/link/a.h"\n'))
    assert list(violations("cluster", "src/cluster/a.h", '#include "cluster/link/a.h"\n'))
    parts = "src/cluster/control/parts/x.cc"
    assert list(violations("cluster", parts, '#include "cluster/control/layout/a.h"\n'))
    assert list(violations("cluster", parts, '#include "cluster/control/controller_core.h"\n'))
    assert not list(violations("cluster", control, '#include "cluster/control/parts/a.h"\n'))
    assert not list(violations("net", "src/net/http/a.cc", '#include "net/url.h"\n'))
    assert list(violations("net", "src/net/http/a.cc", '#include "net/testing/raw_client.h"\n'))
    assert list(violations("serve", "src/serve/a.cc", '#include "net/testing/raw_client.h"\n'))
    assert not list(violations("net", "src/net/http/a_test.cc", '#include "net/testing/a.h"\n'))
    assert not list(room_violations("kv", ["a.h"] * FILES_MAX + ["b_test.cc", "testing"]))
    assert list(room_violations("kv", ["a.h"] * (FILES_MAX + 1)))
    assert list(room_violations("kv", ["room"])), "without a level"
    assert list(violations("apps", "src/apps/cli/a.h", '#include "apps/a.h"\n'))
    assert not list(violations("apps", "src/apps/main.cc", '#include "apps/cli/a.h"\n'))
    assert list(library_violations("helix", "x.h", '#include "experiments/lib/vidur/a.h"\n'))
    assert list(library_violations("helix", "x.h", '#include "experiments/list.h"\n'))
    assert list(library_violations("helix", "x.h", '#include "apps/cli/help.h"\n'))
    own = '#include "experiments/lib/helix/a.h"\n#include "sim/load/quantiles.h"\n'
    assert not list(library_violations("helix", "x.h", own))


if __name__ == "__main__":
    self_test()
    problems = check(pathlib.Path(__file__).resolve().parents[2])
    print("\n".join(problems) or "layers: no include goes up, sideways or out")
    sys.exit(1 if problems else 0)
