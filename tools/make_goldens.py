#!/usr/bin/env python3
"""Write tiny random models and the answers transformers gives for them.

    python3 tools/make_goldens.py [--out tests/goldens] [names...]

Every folder gets config.json, model.safetensors (or shards) and golden.json; see
tests/goldens/README.md.  Weights are seeded; a seed whose greedy choices are near-ties or
dull is skipped for the next one, so that rounding cannot change the answer.
"""
import argparse
import json
import os
import platform
import shutil
import sys

import torch
import transformers
from safetensors import __version__ as safetensors_version
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

NEW_TOKENS = 20
LENGTHS = (3, 11, 40)
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

LLAMA = dict(model_type="llama", vocab_size=128, hidden_act="silu", hidden_size=32, intermediate_size=64,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
             rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, rope_theta=10000.0)
GQA = dict(LLAMA, num_key_value_heads=2)
# Two heads of 16: eight frequencies, and a base that spreads them over the regions the variants treat apart.
ROPE = dict(LLAMA, num_attention_heads=2, num_key_value_heads=1, rope_theta=100.0)
OPT = dict(model_type="opt", vocab_size=128, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
           max_position_embeddings=128, word_embed_proj_dim=32, do_layer_norm_before=True, dropout=0.0,
           activation_function="relu",
           bos_token_id=2, eos_token_id=2, pad_token_id=1)
GPT2 = dict(model_type="gpt2", vocab_size=128, n_positions=64, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0,
            embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0, activation_function="gelu_new",
            layer_norm_epsilon=1e-5)
NEOX = dict(model_type="gpt_neox", vocab_size=128, hidden_size=32, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=128, rotary_pct=0.25, rotary_emb_base=10000,
            use_parallel_residual=True, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
QWEN2 = dict(model_type="qwen2", hidden_act="silu", vocab_size=128, hidden_size=32, intermediate_size=64,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             rms_norm_eps=1e-6, rope_theta=1000000.0, bos_token_id=1, eos_token_id=2)
WINDOW_NOTE = "sliding_window 8: a position sees itself and the 7 before it"

# name -> options.  config: classic fields; style: the form of config.json ("classic" or "v5", the other goes to
# config.alt.json); dtype: of the stored weights; like: take the weights of that entry; more below.
MODELS = {
    "llama-mha": dict(config=LLAMA, extra_buffers=True,
                      notes=["holds rotary_emb.inv_freq tensors as old exports do; they are to be ignored"]),
    "llama-gqa": dict(config=GQA, style="v5"),
    "llama-gqa-bf16": dict(config=GQA, dtype=BF16, style="v5"),
    "llama-gqa-f16": dict(config=GQA, dtype=F16),
    "llama-gqa-sharded": dict(config=GQA, like="llama-gqa", shards=2),
    "llama-bias": dict(config=dict(GQA, attention_bias=True, mlp_bias=True)),
    "llama-tied": dict(config=dict(GQA, tie_word_embeddings=True)),
    "llama-head-dim": dict(config=dict(GQA, head_dim=12)),
    "llama-rope-linear": dict(config=dict(ROPE, rope_scaling={"type": "linear", "factor": 4.0}),
                              notes=["config.json uses the oldest spelling, rope_scaling.type"]),
    "llama-rope-dynamic": dict(
        config=dict(ROPE, max_position_embeddings=32, rope_scaling={"rope_type": "dynamic", "factor": 4.0}),
        lengths=(12, 24, 48), dynamic=True),
    "llama-rope-llama3": dict(config=dict(ROPE, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}), lengths=(12, 24, 48)),
    "llama-rope-yarn": dict(style="v5", config=dict(ROPE, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}), lengths=(12, 24, 48)),
    "llama-rope-yarn-full": dict(config=dict(ROPE, rope_scaling={
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 2.0,
        "beta_slow": 0.5, "attention_factor": 1.25, "truncate": False}), lengths=(12, 24, 48)),
    "mistral": dict(config=dict(GQA, model_type="mistral", sliding_window=None), style="v5"),
    "mistral-window": dict(config=dict(GQA, model_type="mistral", sliding_window=8), notes=[WINDOW_NOTE]),
    "qwen2": dict(config=dict(QWEN2, tie_word_embeddings=True, use_sliding_window=False, sliding_window=8,
                              max_window_layers=1),
                  notes=["sliding_window is given but use_sliding_window is false: attention is full"]),
    "qwen2-window": dict(config=dict(QWEN2, tie_word_embeddings=False, use_sliding_window=True, sliding_window=8,
                                     max_window_layers=1),
                         notes=["layer 0 is full, layer 1 slides (layer index >= max_window_layers)", WINDOW_NOTE]),
    "qwen3": dict(style="v5", config=dict(QWEN2, model_type="qwen3", head_dim=16, attention_bias=False,
                                          tie_word_embeddings=True, use_sliding_window=False, sliding_window=None)),
    "opt": dict(config=OPT),
    "opt-post-norm": dict(config=dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=16),
                          notes=["as opt-350m: norms after the residual, no final norm, project_in and project_out"]),
    "gpt2": dict(config=GPT2),
    "gpt2-bare": dict(config=GPT2, like="gpt2", bare=True,
                      notes=["the weights of gpt2 under the names of the published checkpoint: no `transformer.` "
                             "prefix, and h.N.attn.bias mask buffers, which are to be ignored"]),
    "gpt-neox": dict(config=NEOX, extra_buffers=True,
                     notes=["the output matrix is embed_out.weight, as in published checkpoints",
                            "holds attention.bias, attention.masked_bias and rotary_emb.inv_freq as published "
                            "checkpoints do; they are to be ignored"]),
    "gpt-neox-sequential": dict(style="v5", config=dict(NEOX, use_parallel_residual=False),
                                notes=["the output matrix is lm_head.weight, as transformers 5 writes it"]),
}


def configs(classic, dtype):
    """The same configuration as published folders and as transformers 5 write it."""
    config = AutoConfig.for_model(**{k: (dict(v) if isinstance(v, dict) else v) for k, v in classic.items()})
    model = AutoModelForCausalLM.from_config(config)
    architecture = type(model).__name__
    name = str(dtype).split(".")[1]
    old = {"architectures": [architecture], **classic, "torch_dtype": name}
    config.architectures, config.dtype = [architecture], dtype
    new = {k: v for k, v in json.loads(config.to_json_string(use_diff=False)).items()
           if k not in ("transformers_version", "_name_or_path") and (v is not None or k in classic)}
    for junk in ("id2label", "label2id", "return_dict", "output_hidden_states", "output_attentions",
                 "chunk_size_feed_forward", "is_encoder_decoder", "problem_type"):
        new.pop(junk, None)
    return old, new


def weights(classic, seed):
    config = AutoConfig.for_model(**{k: (dict(v) if isinstance(v, dict) else v) for k, v in classic.items()})
    model = AutoModelForCausalLM.from_config(config)
    g = torch.Generator().manual_seed(seed)
    tied = config.tie_word_embeddings
    out = {}
    for name, p in sorted(model.state_dict().items()):
        if tied and name in ("lm_head.weight", "embed_out.weight"):
            continue
        x = torch.randn(p.shape, generator=g)
        if "norm" in name or ".ln_" in name:
            x = x * 0.2 + 1.0 if name.endswith("weight") else x * 0.1
        elif name.endswith("bias"):
            x = x * 0.1
        elif any(t in name for t in ("embed_tokens", "wte", "embed_in")):
            x = x * (0.15 if tied else 0.5)
        elif any(t in name for t in ("embed_positions", "wpe")):
            x = x * 0.15
        elif any(t in name for t in ("q_proj", "k_proj", "c_attn", "query_key_value")):
            x = x * 0.3
        elif "lm_head" in name or "embed_out" in name:
            x = x * 0.6
        else:
            x = x * 0.25
        out[name] = x
    return out


def store(folder, tensors, spec):
    tensors = dict(tensors)
    if spec.get("bare"):
        n = spec["config"]["n_positions"]
        tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()}
        for i in range(spec["config"]["n_layer"]):
            tensors[f"h.{i}.attn.bias"] = torch.tril(torch.ones(n, n)).view(1, 1, n, n)
    if spec.get("extra_buffers"):
        for i in range(spec["config"]["num_hidden_layers"]):
            if spec["config"]["model_type"] == "llama":
                tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = 10000.0 ** -(torch.arange(0, 8, 2) / 8)
            else:
                if "lm_head.weight" in tensors:
                    tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
                at = f"gpt_neox.layers.{i}.attention."
                tensors[at + "rotary_emb.inv_freq"] = 10000.0 ** -(torch.arange(0, 4, 2) / 4)
                tensors[at + "bias"] = torch.tril(torch.ones(32, 32, dtype=torch.bool)).view(1, 1, 32, 32)
                tensors[at + "masked_bias"] = torch.tensor(-1e9)
    tensors = {k: tensors[k].contiguous() for k in sorted(tensors)}
    shards = spec.get("shards", 1)
    if shards == 1:
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    names, place = list(tensors), {}
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = names[s::shards]
        save_file({k: tensors[k] for k in part}, os.path.join(folder, file), metadata={"format": "pt"})
        place.update({k: file for k in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    write(os.path.join(folder, "model.safetensors.index.json"),
          {"metadata": {"total_size": total}, "weight_map": {k: place[k] for k in names}})


def write(path, value, compact=False):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=None if compact else 2, separators=(",", ":") if compact else None)
        f.write("\n")


def load(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=F32, attn_implementation="eager").eval()
    assert all(p.dtype == F32 for p in model.parameters())
    return model


def digits(x):
    return [float(f"{v:.7g}") for v in x.tolist()]


@torch.no_grad()
def answer(folder, prompt, dynamic):
    """Prefill logits and greedy continuation.  A fresh model each time: `dynamic` rope keeps state."""
    model = load(folder)
    ids = torch.tensor([prompt])
    logits = model(input_ids=ids, use_cache=True).logits[0]
    n = len(prompt)
    places = sorted({n // 3, 2 * n // 3, n - 1})
    model = load(folder)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    got = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=True,
                         max_new_tokens=NEW_TOKENS, output_logits=True, return_dict_in_generate=True)
    tokens = got.sequences[0, n:].tolist()
    steps = torch.stack([s[0] for s in got.logits])
    assert len(tokens) == NEW_TOKENS and torch.allclose(steps[0], logits[-1], atol=1e-5)
    top = steps.topk(2).values
    out = {"tokens": prompt,
           "logits": [{"position": p, "values": digits(logits[p])} for p in places],
           "greedy": tokens,
           "greedy_logprobs": digits(steps.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]),
           "greedy_min_gap": float(f"{(top[:, 0] - top[:, 1]).min().item():.4g}")}
    if dynamic:
        seq, gap = list(prompt), 1e9
        for _ in range(NEW_TOKENS):
            last = load(folder)(input_ids=torch.tensor([seq]), use_cache=False).logits[0, -1]
            best = last.topk(2)
            gap = min(gap, (best.values[0] - best.values[1]).item())
            seq.append(best.indices[0].item())
        out["greedy_recomputed"] = seq[n:]
        out["greedy_recomputed_min_gap"] = float(f"{gap:.4g}")
    return out


DYNAMIC_NOTES = [
    "max_position_embeddings (32) is the original length; base' = base * (factor * L / 32 - (factor - 1)) "
    "** (d / (d - 2)) with d the head dim and L = max(32, tokens so far)",
    "logits: one prefill of the whole prompt, so every position is rotated with the base for L = prompt length",
    "greedy: with cache; each step beyond 32 recomputes the base for the new length, and keys already cached keep the "
    "rotation they were stored with",
    "greedy_recomputed: without cache; each step runs the whole sequence with the base for its length",
    "the rotary module remembers the largest length seen until a sequence shorter than 32 comes, so each prompt was "
    "run on a freshly loaded model",
]


def make(name, spec, out, made):
    classic, dtype = spec["config"], spec.get("dtype", F32)
    folder = os.path.join(out, name)
    old, new = configs(classic, dtype)
    want_gap = 5e-3 if dtype == F32 else 2e-2
    for attempt in range(400):
        seed = 1000 + attempt
        if spec.get("like"):
            seed = made[spec["like"]]
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        v5 = spec.get("style") == "v5"
        write(os.path.join(folder, "config.json"), new if v5 else old)
        write(os.path.join(folder, "config.alt.json"), old if v5 else new)
        tensors = {k: v.to(dtype) for k, v in weights(classic, seed).items()}
        store(folder, tensors, spec)
        g = torch.Generator().manual_seed(seed + 7)
        prompts = [torch.randint(3, classic["vocab_size"], (n,), generator=g).tolist()
                   for n in spec.get("lengths", LENGTHS)]
        answers, good = [], True
        for p in prompts:
            a = answer(folder, p, spec.get("dynamic"))
            answers.append(a)
            gap = min(a["greedy_min_gap"], a.get("greedy_recomputed_min_gap", 1.0))
            if gap < want_gap or len(set(a["greedy"])) < 5:
                good = False
                break
        if good:
            break
        if spec.get("like"):
            sys.exit(f"{name}: the weights of {spec['like']} do not serve")
    else:
        sys.exit(f"{name}: no seed serves")
    # the other spelling of the configuration must mean the same
    shutil.move(os.path.join(folder, "config.json"), os.path.join(folder, "keep"))
    shutil.copy(os.path.join(folder, "config.alt.json"), os.path.join(folder, "config.json"))
    with torch.no_grad():
        other = load(folder)(input_ids=torch.tensor([prompts[-1]])).logits[0, -1]
    os.replace(os.path.join(folder, "keep"), os.path.join(folder, "config.json"))
    assert digits(other) == answers[-1]["logits"][-1]["values"], name
    notes = list(spec.get("notes", [])) + (DYNAMIC_NOTES if spec.get("dynamic") else [])
    if dtype != F32:
        notes.append(f"weights are stored as {old['torch_dtype']}; the reference widened those rounded weights to "
                     "float32 and computed in float32")
    write(os.path.join(folder, "golden.json"), {
        "name": name, "architecture": old["architectures"][0], "stored_dtype": old["torch_dtype"],
        "computed_in": "float32", "attention": "eager", "stop_tokens": "ignored", "seed": seed, "notes": notes,
        "versions": {"python": platform.python_version(), "torch": torch.__version__.split("+")[0],
                     "transformers": transformers.__version__, "safetensors": safetensors_version},
        "prompts": answers}, compact=True)
    made[name] = seed
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name}: seed {seed}, gap {min(a['greedy_min_gap'] for a in answers)}, {size} bytes", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", default="tests/goldens")
    ap.add_argument("names", nargs="*")
    args = ap.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    made = {}
    for name in args.names or MODELS:
        like = MODELS[name].get("like")
        if like and like not in made:
            with open(os.path.join(args.out, like, "golden.json"), encoding="utf-8") as f:
                made[like] = json.load(f)["seed"]
        make(name, MODELS[name], args.out, made)


if __name__ == "__main__":
    main()
