"""What a cluster's processes hold: descriptors, shared memory, KV blocks. And whether it grows."""
import dataclasses
import os
import pathlib
import statistics
import time

from harness import proc

SAMPLES = 3  # the least of them counts: connections of those who just left are being closed
SAMPLE_PAUSE_S = 0.2
# What a run may have more of at its end than while it warmed up. One thing lost with every fault of
# a long run is far more; a thread pool that still fills, a connection more, or the memory that each
# of up to four workers stages KV in from its first transfer on, is not.
SLACK = {"controller fds": 8, "worker fds": 8, "memfds": 4, "shm entries": 0, "KV blocks": 0}
WARM_UP_SHARE, WARM_UP_MIN = 0.2, 2
LAST_SHARE = 0.25


@dataclasses.dataclass
class Held:
    """By name, as in SLACK; and what is told but not judged."""
    counts: dict
    rss_mb: float  # of all processes together

    def __str__(self):
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return f"{counts}, {self.rss_mb:.0f} MB"


def descriptors(pid):
    return [name for name in os.listdir(f"/proc/{pid}/fd")]


def memfds(pid):
    """Memory files of ours that the process has open or mapped, by inode."""
    found = set()
    for fd in descriptors(pid):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            if target.startswith("/memfd:"):
                found.add(os.stat(f"/proc/{pid}/fd/{fd}").st_ino)
        except OSError:
            continue  # closed meanwhile
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/memfd:"):
            found.add(int(fields[4]))
    return found


def shm_entries():
    return len([name for name in os.listdir("/dev/shm") if "millrace" in name])


def sample(controller, workers, status):
    """`workers`: process ids; `status`: of /cluster/status, while nothing runs."""
    inodes = set().union(*(memfds(pid) for pid in [controller, *workers]))
    rss_bytes = sum(map(proc.memory_bytes, [controller, *workers]))
    counts = {
        "controller fds": len(descriptors(controller)),
        "worker fds": max(len(descriptors(pid)) for pid in workers),
        "memfds": len(inodes),
        "shm entries": shm_entries(),
        "KV blocks": sum(pipeline["blocks_used"] for pipeline in status["pipelines"]),
    }
    return Held(counts, rss_bytes / 2**20)


def least(take):
    """The least of a few samples that `take` makes."""
    held = take()
    for _ in range(SAMPLES - 1):
        time.sleep(SAMPLE_PAUSE_S)
        again = take()
        held.counts = {name: min(count, again.counts[name])
                       for name, count in held.counts.items()}
    return held


def warm_up(faults):
    return max(WARM_UP_MIN, int(faults * WARM_UP_SHARE))


def grown(samples):
    """Names of what grew, with the numbers: the least of the run's last quarter against the most of
    its warm-up. `samples`: counts by name, one for each fault."""
    first = samples[:warm_up(len(samples))]
    last = samples[-max(1, int(len(samples) * LAST_SHARE)):]
    found = []
    for name, slack in SLACK.items():
        before, after = max(s[name] for s in first), min(s[name] for s in last)
        if after > before + slack:
            found.append(f"{name}: at most {before} during warm-up, at least {after} at the end")
    return found


def spread(values):
    """Median, 90th percentile and worst of them, as text; "-" for none."""
    if not values:
        return "- | - | -"
    ordered = sorted(values)
    p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"{statistics.median(ordered):.2f} | {p90:.2f} | {ordered[-1]:.2f}"
