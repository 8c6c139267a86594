"""Unlike machines on one Linux machine: processor quotas and memory limits by control groups (version
1 or 2), network namespaces on a bridge per zone, and a thin line with latency between zones.

Needs root. A `Machines` removes everything that it made when it is closed; `sweep` removes what a
driver left that was killed.
"""
import ctypes
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PREFIX = "mrl"  # names of groups and namespaces: PREFIX, the driver's pid, a name
GROUPS = pathlib.Path("/sys/fs/cgroup")
PERIOD_US = 10_000  # of quotas; the usual 100 ms would let short bursts run at full speed
LOUD_SHARES = 1 << 18  # others who compile at the same time get what the quotas leave
STOP_LIMIT_S = 20
PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


class NotPossible(Exception):
    """This machine lets us make no unlike machines; the text says why."""


@dataclasses.dataclass(frozen=True)
class Machine:
    name: str
    zone: str
    cores: float  # a share of the machine's processors; less than 1 too
    memory_mib: int | None = None


def sh(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotPossible(f"{' '.join(words)}: {done.stderr.strip()}")


def write(path, value):
    try:
        pathlib.Path(path).write_text(str(value))
    except OSError as error:
        raise NotPossible(f"{path}: {error}") from error


def end_with_parent():
    """Runs in a child between fork and exec."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Group:
    """A control group with a limit of processor time, and of memory."""

    def __init__(self, name, cores=None, memory_mib=None, shares=None):
        self.paths = []
        if (GROUPS / "cpu" / "cpu.cfs_quota_us").exists():
            self.first_version(name, cores, memory_mib, shares)
        elif "cpu" in self.controllers(GROUPS):
            self.second_version(name, cores, memory_mib, shares)
        else:
            raise NotPossible("no control groups for processor time in /sys/fs/cgroup")

    @staticmethod
    def controllers(folder):
        path = folder / "cgroup.controllers"
        return path.read_text().split() if path.exists() else []

    def add(self, path):
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise NotPossible(f"{path}: {error}") from error
        self.paths.append(path)
        return path

    def first_version(self, name, cores, memory_mib, shares):
        path = self.add(GROUPS / "cpu" / name)
        if shares:
            write(path / "cpu.shares", shares)
        if cores:
            write(path / "cpu.cfs_period_us", PERIOD_US)
            write(path / "cpu.cfs_quota_us", round(cores * PERIOD_US))
        self.add(GROUPS / "cpuacct" / name)
        if memory_mib:
            folder = GROUPS / "memory" / name
            if not folder.parent.exists():
                self.add(folder.parent)
            write(self.add(folder) / "memory.limit_in_bytes", memory_mib << 20)

    def second_version(self, name, cores, memory_mib, shares):
        for folder in [GROUPS, *[GROUPS / p for p in pathlib.PurePath(name).parents][:-1]]:
            write(folder / "cgroup.subtree_control", "+cpu +memory")
        path = self.add(GROUPS / name)
        if shares:
            write(path / "cpu.weight", min(10_000, max(1, shares * 100 // 1024)))
        if cores:
            write(path / "cpu.max", f"{round(cores * PERIOD_US)} {PERIOD_US}")
        if memory_mib:
            write(path / "memory.max", memory_mib << 20)

    def forget_memory(self):
        """The limit is lifted. A process that started under it has said what it found."""
        for path in self.paths:
            for name, none in (("memory.limit_in_bytes", -1), ("memory.max", "max")):
                if (path / name).exists():
                    write(path / name, none)

    def files(self):
        """The files that a process writes its id to."""
        return [str(path / "cgroup.procs") for path in self.paths]

    def processor_s(self):
        """Processor time that the group has used."""
        for path in self.paths:
            if (path / "cpuacct.usage").exists():
                return int((path / "cpuacct.usage").read_text()) / 1e9
        stat = (self.paths[0] / "cpu.stat").read_text()
        return int(re.search(r"^usage_usec (\d+)", stat, re.MULTILINE).group(1)) / 1e6

    def throttled_share(self):
        """The share of the quota's periods in which the group was held back."""
        numbers = dict(line.split() for line in
                       (self.paths[0] / "cpu.stat").read_text().splitlines())
        return int(numbers.get("nr_throttled", 0)) / max(1, int(numbers.get("nr_periods", 0)))

    def remove(self):
        for path in reversed(self.paths):
            for _ in range(100):  # its last process may still be ending
                try:
                    path.rmdir()
                    break
                except OSError:
                    time.sleep(0.05)


class Machines:
    """Machines, the line between their zones, and what runs on them."""

    def __init__(self, machines, line_mbit_s, line_latency_ms, zones=("east", "west"),
                 head_zone="east", head_cores=None, shares=LOUD_SHARES, machine_shares=None):
        sweep()
        self.prefix = f"{PREFIX}{os.getpid()}"
        self.machines = {m.name: m for m in machines}
        self.zones, self.head_zone = zones, head_zone
        self.groups, self.spaces, self.children = {}, [], []
        try:
            self.parent = Group(self.prefix, shares=shares)
            for m in machines:
                self.groups[m.name] = Group(f"{self.prefix}/{m.name}", m.cores, m.memory_mib,
                                            machine_shares)
            self.groups["head"] = Group(f"{self.prefix}/head", head_cores)
            self.groups["load"] = Group(f"{self.prefix}/load")
            self.make_network(line_mbit_s, line_latency_ms)
        except BaseException:
            self.close()
            raise

    # Addresses: the head is .1, the machines follow in order.
    def address(self, name):
        return f"10.78.0.{1 + ['head', *self.machines].index(name)}"

    def space(self, name):
        return f"{self.prefix}-{name}"

    def add_space(self, name):
        sh("ip", "netns", "add", self.space(name))
        self.spaces.append(self.space(name))
        sh("ip", "-n", self.space(name), "link", "set", "lo", "up")

    def make_network(self, line_mbit_s, line_latency_ms):
        self.add_space("hub")
        hub = ["ip", "-n", self.space("hub")]
        for zone in self.zones:
            sh(*hub, "link", "add", zone, "type", "bridge")
            sh(*hub, "link", "set", zone, "up")
        for number, name in enumerate(["head", *self.machines]):
            zone = self.head_zone if name == "head" else self.machines[name].zone
            self.add_space(name)
            here = ["ip", "-n", self.space(name)]
            sh(*here, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{number}",
               "netns", self.space("hub"))
            sh(*here, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            sh(*here, "link", "set", "eth0", "up")
            sh(*hub, "link", "set", f"port{number}", "master", zone, "up")
        if len(self.zones) == 2:
            self.make_line(hub, line_mbit_s, line_latency_ms)

    def make_line(self, hub, mbit_s, latency_ms):
        """A relay between the bridges; what goes out to it is shaped."""
        relay = subprocess.Popen(
            ["ip", "netns", "exec", self.space("hub"), sys.executable, str(HERE / "relay.py"),
             str(latency_ms / 1e3), *[f"line-{zone}" for zone in self.zones]],
            stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent)
        self.children.append(relay)
        if relay.stdout.readline() != "ready\n":
            raise NotPossible("the relay cannot open /dev/net/tun")
        self.place(relay.pid, self.groups["load"])
        for zone in self.zones:
            sh(*hub, "link", "set", f"line-{zone}", "master", zone, "up")
            sh("ip", "netns", "exec", self.space("hub"), "tc", "qdisc", "add", "dev",
               f"line-{zone}", "root", "tbf", "rate", f"{mbit_s}mbit", "burst", "16kb", "limit",
               "8mb")

    @staticmethod
    def place(pid, group):
        for file in group.files():
            write(file, pid)

    def enter(self, name="head"):
        """This process, and what it starts from now on, is on that machine's network."""
        with open(f"/run/netns/{self.space(name)}", encoding="ascii") as space:
            if LIBC.setns(space.fileno(), CLONE_NEWNET) != 0:
                raise NotPossible(f"setns: {os.strerror(ctypes.get_errno())}")

    def start(self, name, words, group=None, **more):
        """A process on that machine: in its network and within its limits, or those of `group`."""
        files = self.groups[group or name].files()
        join = "".join(f'echo $$ > "{file}" && ' for file in files)
        child = subprocess.Popen(
            # Not `ip netns exec`: its own /sys has no control groups, so nobody would see the limits.
            # Processes in one PID namespace would take their data from each other's memory.
            ["sh", "-c", join + f'exec nsenter --net=/run/netns/{self.space(name)} '
             'unshare --pid --fork --kill-child "$@"', "sh", *words],
            preexec_fn=end_with_parent, **more)
        self.children = [c for c in self.children if c.poll() is None] + [child]
        return child

    def close(self):
        for child in reversed(self.children):
            if child.poll() is None:
                child.kill()
        for child in self.children:
            child.wait(STOP_LIMIT_S)
        self.children.clear()
        for space in reversed(self.spaces):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        self.spaces.clear()
        for group in reversed(self.groups.values()):
            group.remove()
        self.groups.clear()
        if hasattr(self, "parent"):
            self.parent.remove()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def sweep():
    """Removes what drivers left that no longer run. Their children ended with them."""
    def orphaned(name):
        found = re.fullmatch(PREFIX + r"(\d+)(-.*)?", name)
        return found and not pathlib.Path("/proc", found.group(1)).exists()

    spaces = pathlib.Path("/run/netns")
    for space in spaces.iterdir() if spaces.exists() else []:
        if orphaned(space.name):
            subprocess.run(["ip", "netns", "del", space.name], check=False, capture_output=True)
    for root in (GROUPS / "cpu", GROUPS / "cpuacct", GROUPS / "memory", GROUPS):
        for parent in root.glob(PREFIX + "*") if root.exists() else []:
            if orphaned(parent.name):
                for path in [*parent.glob("*/"), parent]:
                    path.rmdir()


def raise_on_signals():
    """Signals end the driver through its `finally` blocks."""
    def leave(number, _):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
