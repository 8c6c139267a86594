#!/usr/bin/env python3
"""Writes the small tokenizers of the tests, one per decoder shape, beside this file.

They are ours: alphabets and a few merges, chosen so that tokens split characters.
"""

import json
import pathlib

HERE = pathlib.Path(__file__).parent


def added(token_id, content, special):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": special}


def byte_alphabet():
    """GPT-2's map of bytes to printable characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 256
    for byte in range(256):
        if byte in printable:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(extra)
            extra += 1
    return table


def grow(vocab, merges, words):
    """Adds merges that build each word (a list of symbols) from the left."""
    for word in words:
        left = word[0]
        for symbol in word[1:]:
            if left + symbol not in vocab:
                vocab[left + symbol] = len(vocab)
                merges.append([left, symbol])
            left += symbol


def file_of(model, normalizer, pre_tokenizer, post_processor, decoder, added_tokens):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor, "decoder": decoder, "model": model}


def bpe(vocab, merges, **options):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": vocab, "merges": merges}
    return {**model, **options}


def byte_level():
    table = byte_alphabet()
    vocab = {table[b]: i for i, b in enumerate(range(256))}
    merges = []
    words = ["hello", " hello", " world", " the", "\u20ac", " \u65e5", "\U0001f642"]
    grow(vocab, merges, [[table[b] for b in w.encode()] for w in words])
    # Tokens that end inside a character: the first two bytes of a CJK block and of emoji.
    grow(vocab, merges, [[table[0xE6], table[0x9C]], [table[0x82], table[0xAC]]])
    n = len(vocab)
    tokens = [added(n, "<|endoftext|>", True), added(n + 1, "<|im_start|>", True),
              added(n + 2, "<|im_end|>", True), added(n + 3, "<think>", False),
              added(n + 4, "\u00ab\u65e5\u00bb", False)]
    part = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return file_of(bpe(vocab, merges), None, part, part, part, tokens)


def byte_fallback():
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>"])}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for char in "\u2581abcdefghijklmnopqrstuvwxyzHTW.,!?\u00e9\u65e5":
        vocab[char] = len(vocab)
    merges = []
    grow(vocab, merges, [list("\u2581hello"), list("\u2581world"), list("\u2581the"),
                         ["\u2581", "\u2581"], list("ing")])
    tokens = [added(0, "<unk>", True), added(1, "<s>", True), added(2, "</s>", True)]
    model = bpe(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    post = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return file_of(model, normalizer, None, post, decoder, tokens)


def unigram():
    pieces = [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u2581", -2.0],
              ["\u2581hello", -4.0], ["\u2581world", -4.5], ["\u2581\u65e5", -5.0], ["ing", -4.2],
              ["\u2581\u2581", -6.0]]
    pieces += [[c, -7.0 - i / 100] for i, c in enumerate("abcdefghijklmnopqrstuvwxyz.,!?\u00e9\u65e5")]
    model = {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": False}
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
             "split": True}
    tokens = [added(0, "<pad>", True), added(1, "</s>", True), added(2, "<unk>", True)]
    return file_of(model, None, space, None, space, tokens)


def word_piece():
    words = ["[UNK]", "[CLS]", "[SEP]", "hello", "world", "the", "##ing", "##s", "a", "b", ".", ",",
             "don", "'", "t", "\u65e5", "##\u65e5"]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
             "max_input_chars_per_word": 100, "vocab": {w: i for i, w in enumerate(words)}}
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    tokens = [added(0, "[UNK]", True), added(1, "[CLS]", True), added(2, "[SEP]", True)]
    return file_of(model, None, {"type": "BertPreTokenizer"}, None, decoder, tokens)


for name, build in [("byte_level", byte_level), ("byte_fallback", byte_fallback),
                    ("unigram", unigram), ("word_piece", word_piece)]:
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    text = json.dumps(build(), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
