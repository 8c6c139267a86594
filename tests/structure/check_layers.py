#!/usr/bin/env python3
"""Fails when a folder of src/ includes a folder of its own or a higher level.

The levels are those of docs/structure.md: a folder may include only folders of lower levels, never
sideways, and no folder beside src/. The folders inside a folder of SUB_LEVELS have levels of their
own; files directly in such a folder are below all of them, unless "" has a level. A folder of
experiments/lib may include src/ below the program, and nothing else of experiments/. Each run first
proves that the check can fail.
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
    "apps": 7,
}
SUB_LEVELS = {
    "cluster": {
        "journal": 0, "store": 0, "link": 0, "transfer": 0,
        "worker": 1, "control": 1,
        "runtime": 2, "autopilot": 2,
        "fleet": 3,
    },
    "apps": {
        "cli": 0, "supervise": 0,
        "common": 1, "bench": 1,
        "plan": 2, "hub": 2, "verify": 2,
        "cluster": 3, "simulate": 3,
        "profile": 4, "autopilot": 4, "drill": 4, "fleet": 4,
        "commands": 5,
        "": 6,
    },
}
LIBRARIES = "experiments/lib"
LIBRARIES_LEVEL_MAX = 6  # whatever a library of src/ can be
BESIDE = {"bench", "experiments", "fuzz", "tests"}  # folders beside src/ that have headers
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"/]+)/([^"]*)"', re.MULTILINE)


def line_of(text, match):
    return text.count("\n", 0, match.start()) + 1


def violations(folder, name, text):
    """Yields one line per include in `text` (of file `name` in `folder`) that breaks the order."""
    for match in INCLUDE.finditer(text):
        other = match.group(1)
        if other in BESIDE:
            yield f"{name}:{line_of(text, match)}: src/ includes {other}/"
        if other == folder and folder in SUB_LEVELS:
            yield from inner_violations(folder, name, text, match)
        if other == folder or other not in LEVELS:
            continue
        if LEVELS[other] >= LEVELS[folder]:
            yield (f"{name}:{line_of(text, match)}: {folder} (level {LEVELS[folder]}) includes "
                   f"{other} (level {LEVELS[other]})")


def inner_violations(folder, name, text, match):
    """The same for an include between the folders inside `folder`."""
    levels = SUB_LEVELS[folder]
    inside = name.split("/")[2:-1]
    own = inside[0] if inside else ""
    to = match.group(2).split("/")[0] if "/" in match.group(2) else ""
    if own == to:
        return
    if levels.get(to, -1) >= levels.get(own, -1):
        yield f"{name}:{line_of(text, match)}: {folder}/{own} includes {folder}/{to}"


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
        for folder in path.iterdir() if path.name in SUB_LEVELS else ():
            if folder.is_dir() and folder.name not in SUB_LEVELS[path.name]:
                found.append(f"src/{path.name}/{folder.name}: not in SUB_LEVELS in {__file__}")
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
