#!/usr/bin/env python3
"""Writes a Llama model folder of bf16 weights as one GGUF file. Needs numpy and gguf.

usage: write_gguf.py MODEL_FOLDER FILE

llama.cpp has a script of its own for this. It needs transformers and torch, and it refuses
tokenizers that it does not know by name.
"""
import json
import pathlib
import sys

import gguf
import numpy

LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}
OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in OUTER:
        return OUTER[name]
    _, _, layer, rest = name.split(".", maxsplit=3)
    return f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight"


def interleave_halves(weight, heads):
    """Rotary pairs are (i, i + half) in the folder and neighbours in GGUF."""
    rows, columns = weight.shape
    return (weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
            .reshape(rows, columns))


def read_tensors(path):
    """Name and bf16 bits of every tensor of a safetensors file."""
    data = numpy.memmap(path, numpy.uint8, "r")
    header_bytes = int(data[:8].view(numpy.uint64)[0])
    for name, entry in json.loads(bytes(data[8:8 + header_bytes])).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise SystemExit(f"{name} is {entry['dtype']}, not BF16")
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        yield name, data[begin:end].view(numpy.uint16).reshape(entry["shape"])


def add_settings(writer, config):
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_tokenizer(writer, tokenizer, config):
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    by_id = sorted(vocabulary, key=vocabulary.get)
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(by_id)
    writer.add_token_types([kinds.CONTROL if vocabulary[token] in special else kinds.NORMAL
                            for token in by_id])
    writer.add_token_merges(tokenizer["model"]["merges"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def main():
    folder, target = map(pathlib.Path, sys.argv[1:])
    config = json.loads((folder / "config.json").read_text())
    if config["architectures"] != ["LlamaForCausalLM"]:
        raise SystemExit(f"{config['architectures'][0]} is not written here, only LlamaForCausalLM")
    unfinished = target.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "llama")
    add_settings(writer, config)
    add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()), config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, bits in read_tensors(folder / "model.safetensors"):
        kind = name.split(".")[-2]
        if kind in heads:
            bits = interleave_halves(bits, heads[kind])
        if bits.ndim == 1:  # norms are f32 in GGUF
            writer.add_tensor(gguf_name(name),
                              (bits.astype(numpy.uint32) << 16).view(numpy.float32))
        else:
            writer.add_tensor(gguf_name(name), numpy.ascontiguousarray(bits).view(numpy.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(target)


if __name__ == "__main__":
    main()
