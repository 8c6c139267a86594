"""What /proc says of processes."""
import pathlib
import re
import typing


class Found(typing.NamedTuple):
    pid: int
    parent: int
    words: list


def running():
    """All processes that have not ended."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if state != "Z":
            found.append(Found(int(entry.name), int(parent), words))
    return found


def children(pid):
    return [process for process in running() if process.parent == pid]


def workers_of(pid):
    """The ids of the workers among the children, by --name."""
    return {child.words[child.words.index("--name") + 1]: child.pid for child in children(pid)
            if "worker" in child.words}


def threads_of(pid):
    """The names of its threads."""
    return {path.read_text().strip() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/comm")}


def mentioning(text):
    """The command lines that have it."""
    lines = [" ".join(process.words) for process in running()]
    return [line for line in lines if text in line]


def memory_bytes(pid, kind="VmRSS"):
    """0 for one that ends."""
    found = re.search(rf"{kind}:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) << 10 if found else 0
