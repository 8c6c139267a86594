"""Machines made of network namespaces on a bridge of their own. Needs root and `ip`."""
import os
import shutil
import subprocess

SKIPPED = 77  # the exit code of a test that cannot run here


class Unavailable(Exception):
    """Namespaces cannot be made here."""


def sh(command):
    done = subprocess.run(command, shell=True, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"{command}: {done.stderr}")
    return done.stdout


class Network:
    """A machine for each address. Raises Unavailable where there cannot be any."""

    def __init__(self, prefix, addresses, programs=("ip",)):
        self.addresses, self.programs = addresses, programs
        self.bridge = f"{prefix}{os.getpid() % 100000}"

    def space(self, address):
        return f"{self.bridge}-{address.rsplit('.', 1)[1]}"

    def enter(self, address):
        """The words that run a command there."""
        return ["ip", "netns", "exec", self.space(address)]

    def cable(self, address, state):
        """The command that plugs it in ("up") or out ("down")."""
        return f"ip -n {self.bridge} link set port{address.rsplit('.', 1)[1]} {state}"

    def __enter__(self):
        if os.geteuid() != 0 or not all(map(shutil.which, self.programs)):
            raise Unavailable("needs root, " + ", ".join(self.programs))
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def make(self):
        sh(f"ip netns add {self.bridge} && ip -n {self.bridge} link add br0 type bridge && "
           f"ip -n {self.bridge} link set br0 up")
        for address in self.addresses:
            space, port = self.space(address), f"port{address.rsplit('.', 1)[1]}"
            sh(f"ip netns add {space} && ip -n {space} link set lo up && "
               f"ip -n {space} link add eth0 type veth peer name {port} netns {self.bridge} && "
               f"ip -n {space} addr add {address}/24 dev eth0 && ip -n {space} link set eth0 up && "
               f"ip -n {self.bridge} link set {port} master br0 up")

    def remove(self):
        for name in [*map(self.space, self.addresses), self.bridge]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def skip_if_unavailable(test):
    """The exit code of a test's main."""
    try:
        test()
    except Unavailable as why:
        print(f"skipped: {why}")
        return SKIPPED
    print("OK")
    return 0
