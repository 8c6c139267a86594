"""A provider's spot machines as SpotServe's traces have them, with time compressed and the number of
machines divided; arrivals of requests as its experiments draw them, and as they were meant.
"""
import dataclasses
import json
import random

COMPRESSED = 24  # times
MACHINES_PER_WORKER = 2
NOTICE_S = 30  # before an event of the trace, of additions too
GAMMA_CV = 6
SPOT_USD_PER_HOUR = 1.9046  # of a g4dn.12xlarge, as in the released scripts


@dataclasses.dataclass(frozen=True)
class Change:
    """A worker comes or goes at `at_s`; it is known `notice_s` before. Both in compressed time."""
    at_s: float
    name: str
    comes: bool
    notice_s: float = NOTICE_S / COMPRESSED


@dataclasses.dataclass(frozen=True)
class Segment:
    name: str
    first: tuple  # names of the workers that are there at the start
    changes: tuple
    end_s: float


def read_segment(name, path, seed=0):
    """One worker stands for two machines of the trace: with n machines there are n // 2 workers. Which
    of them goes is drawn: the trace's own choice is of a machine that has no half."""
    draw = random.Random(seed)
    machines, alive, number, changes, first = set(), [], 0, [], None
    for line in path.read_text().splitlines():
        at_ms, what, more = json.loads(line)
        at_s = at_ms / 1e3 / COMPRESSED
        if what == "DONE":
            return Segment(name, tuple(first), tuple(changes), at_s)
        nodes = set(more["nodes"])
        machines = machines | nodes if what == "add" else machines - nodes
        while len(alive) < len(machines) // MACHINES_PER_WORKER:
            alive.append(f"w{number}")
            number += 1
            if first is not None:
                changes.append(Change(at_s, alive[-1], True))
        while len(alive) > len(machines) // MACHINES_PER_WORKER:
            gone = alive.pop(draw.randrange(len(alive)))
            changes.append(Change(at_s, gone, False))
        first = first or list(alive)
    raise ValueError(f"{path} has no end")


def arrivals(kind, rate, end_s, seed):
    """Seconds, ascending. Gamma gaps are scaled so that as many requests come as were asked for: of so
    few bursts, the number would be anything."""
    draw = random.Random(seed)
    count = round(rate * end_s)
    if kind == "poisson":
        return sorted(draw.uniform(0, end_s) for _ in range(count))
    shape = 1 / GAMMA_CV ** 2
    gaps = [draw.gammavariate(shape, 1 / (shape * rate)) for _ in range(count + 1)]
    scale, at, found = end_s / sum(gaps), 0.0, []
    for gap in gaps[:count]:
        at += gap * scale
        found.append(at)
    return found


def usd_per_100k_tokens(worker_s, tokens):
    """Of workers that were held for so many seconds together, each as dear as the machines that it
    stands for."""
    return worker_s / 3600 * MACHINES_PER_WORKER * SPOT_USD_PER_HOUR / tokens * 1e5
