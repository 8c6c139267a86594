"""OpenVINO GenAI: converted with optimum, served by openvino_server.py."""
import shutil

import torch_cpu
from common import (HERE, Peer, PeerError, fresh_folder, make_environment, pinned, requirements,
                    run_step)
from peer_millrace import SEQUENCES_MAX

KV_CACHE_GB = 1
STEP_TOKENS_MAX = 2048  # as Millrace and vLLM have it


class OpenVino(Peer):
    name = "openvino"
    title = "OpenVINO GenAI"
    version = pinned(requirements("openvino"), "openvino-genai")

    @staticmethod
    def _environment(setting):
        return setting.root / "openvino" / "environment"

    @staticmethod
    def _model(setting):
        return setting.root / "openvino-convert" / "models" / setting.shape

    def install(self, setting):
        log = setting.log("openvino-install")
        with fresh_folder(setting.root / "openvino", requirements("openvino").read_text()) as fresh:
            if fresh is not None:
                make_environment(self._environment(setting), requirements("openvino"), log)
        pins = requirements("openvino_convert")
        packages = torch_cpu.install(setting)
        with fresh_folder(setting.root / "openvino-convert", pins.read_text()) as fresh:
            if fresh is not None:
                make_environment(fresh / "environment", pins, log)
                torch_cpu.add_to(fresh / "environment", packages)

    def convert(self, setting):
        target = self._model(setting)
        if target.is_dir():
            return
        unfinished = target.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        # The tool has no bf16 files; the arithmetic is bf16 where the processor has it.
        run_step("converting the model for OpenVINO",
                 [setting.root / "openvino-convert/environment/bin/optimum-cli", "export",
                  "openvino", "--model", setting.hf_model, "--task", "text-generation-with-past",
                  "--weight-format", "fp16", unfinished], setting.log("openvino-convert"),
                 "Only shapes named llama-* were tried.", env={"HF_HUB_OFFLINE": "1"})
        unfinished.rename(target)

    def command(self, setting, port):
        if setting.threads < 2:
            raise PeerError(f"OpenVINO {self.version} divides by zero with one thread in bf16; "
                            "give --threads 2 or more.")
        return [self._environment(setting) / "bin/python", HERE / "openvino_server.py",
                self._model(setting), "--tokenizer", setting.hf_model / "tokenizer.json",
                "--port", port, "--threads", setting.threads, "--kv-cache-gb", KV_CACHE_GB,
                "--max-num-batched-tokens", STEP_TOKENS_MAX,
                "--max-num-seqs", SEQUENCES_MAX], {}
