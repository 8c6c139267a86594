"""What test scripts begin with."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"


def take_paths(count):
    """The first arguments of the script, absolute, as a list of strings. They are taken from sys.argv,
    which leaves those of unittest."""
    taken, sys.argv[1:] = sys.argv[1:count + 1], sys.argv[count + 1:]
    if len(taken) < count:
        sys.exit(sys.modules["__main__"].__doc__)
    return [str(pathlib.Path(path).resolve()) for path in taken]


class FolderTest(unittest.TestCase):
    """`self.folder` is new for each test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
