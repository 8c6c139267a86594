"""A thread of another process that stands still, while the others of that process run."""
import ctypes
import os
import pathlib

PTRACE_INTERRUPT, PTRACE_DETACH, PTRACE_SEIZE = 0x4207, 17, 0x4206
WAIT_ALL = 0x40000000  # __WALL


class Stopped:
    """A thread of another process that stands still, while the others of that process run. All
    calls for it must come from one thread."""

    def __init__(self, tid):
        self.tid = tid
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p,
                                     ctypes.c_void_p]
        self.libc.ptrace.restype = ctypes.c_long

    def call(self, what):
        if self.libc.ptrace(what, self.tid, None, None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def __enter__(self):
        self.call(PTRACE_SEIZE)
        self.call(PTRACE_INTERRUPT)
        os.waitpid(self.tid, WAIT_ALL)

    def __exit__(self, *_):
        try:
            self.call(PTRACE_DETACH)
        except ProcessLookupError:  # its process has ended
            os.waitpid(self.tid, WAIT_ALL)


def thread_named(pid, name):
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise AssertionError(f"no thread {name}")
