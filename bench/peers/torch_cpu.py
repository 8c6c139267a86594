"""PyTorch for the CPU from PyPI, whose package for x86-64 is the one for CUDA.

That build loads some fifteen CUDA libraries (2.5 GB) at import and calls none of them without a
GPU. One small library in the place of all of them answers every call with "no device".
"""
import pathlib
import re
import subprocess
import tempfile

from common import PeerError, fresh_folder, make_environment, requirements, run_step

CUDA_LIBRARY = re.compile(r"lib(cu|nccl|nv)")
CUDA_FUNCTION = re.compile(r"(__cu|cu|nccl|nv|_ZNK?\d*(cudnn|nvshmem))")
NO_DEVICE = 100  # cudaErrorNoDevice


def read_elf(option, library):
    return subprocess.run(["readelf", "-W", option, str(library)], capture_output=True, text=True,
                          check=True).stdout


def needed_libraries(dynamic_section):
    names = re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic_section)
    return {name for name in names if CUDA_LIBRARY.match(name)}


def symbols(table):
    """Names that a library defines, and {name: version} of those that it wants from CUDA."""
    defined, wanted = set(), {}
    for line in table.split("\n"):
        fields = line.split()
        if len(fields) < 8 or fields[4] not in ("GLOBAL", "WEAK"):
            continue
        name, _, version = fields[7].partition("@")
        version = version.lstrip("@")
        if fields[6] != "UND":
            defined.add(name)
        elif CUDA_FUNCTION.match(name) or CUDA_LIBRARY.match(version):
            wanted[name] = version
    return defined, wanted


def stand_in(name):
    """A function in C by this name."""
    if name == "cudaGetDeviceCount":
        return f"int {name}(int* count) {{ *count = 0; return {NO_DEVICE}; }}"
    if name.startswith("__cuda"):  # registers kernels at load; the handle is kept
        return f"void* {name}(void) {{ static long handle[64]; return handle; }}"
    if "String" in name or "ErrorName" in name:
        return f'const char* {name}(void) {{ return "no CUDA here"; }}'
    return f"long {name}(void) {{ return {NO_DEVICE}; }}"


def version_script(wanted):
    """Gives each function its version; the loader refuses a library that has none."""
    versions = {}
    for name, version in sorted(wanted.items()):
        if version:
            versions.setdefault(version, []).append(name)
    return "".join(f"{version} {{ global: {' '.join(name + ';' for name in names)} }};\n"
                   for version, names in versions.items())


def write_stand_ins(folder, log):
    """Fills torch's library folder with what its own libraries need of CUDA."""
    needed, defined, wanted = set(), set(), {}
    for library in folder.glob("*.so*"):
        needed |= needed_libraries(read_elf("-d", library))
        has, wants = symbols(read_elf("--dyn-syms", library))
        defined |= has
        wanted.update(wants)
    missing = sorted(name for name in needed if not (folder / name).exists())
    wanted = {name: version for name, version in wanted.items() if name not in defined}
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch, "no_cuda.c")
        source.write_text("\n".join(stand_in(name) for name in sorted(wanted)) + "\n")
        versions = pathlib.Path(scratch, "no_cuda.map")
        versions.write_text(version_script(wanted))
        run_step("building stand-ins for the CUDA libraries",
                 ["gcc", "-w", "-O1", "-shared", "-fPIC", "-fno-builtin", source,
                  f"-Wl,--version-script={versions}", "-o", folder / "libno_cuda.so"],
                 log, "gcc and binutils are needed; `make setup` installs them.")
    for name in missing:
        (folder / name).symlink_to("libno_cuda.so")


def install(setting):
    """The folder with torch, for add_to; shared by the environments because it is large."""
    log = setting.log("torch-install")
    pins = requirements("torch")
    folder = setting.root / "torch"
    with fresh_folder(folder, pins.read_text()) as fresh:
        if fresh is not None:
            make_environment(folder / "environment", pins, log,
                             ["--target", folder / "packages"])
            try:
                write_stand_ins(folder / "packages/torch/lib", log)
            except (OSError, subprocess.CalledProcessError) as error:
                raise PeerError(f"torch's libraries cannot be read: {error}. binutils is needed; "
                                "`make setup` installs it.") from error
    return folder / "packages"


def add_to(environment, packages):
    """Makes a virtual environment see torch."""
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "shared-torch.pth").write_text(f"{packages}\n")
