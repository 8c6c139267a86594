"""The model that all servers load: a published shape with random weights, from `make-model`."""
import json
import shutil
import struct

from common import run_step

# GPT-2's byte-level alphabet shows a space as this letter.
SPACE = "\u0120"
QUARTER = bytes(high - 1 if high & 0x7f else high for high in range(256))


def make_model(setting):
    """Writes setting.hf_model once. Its answers are plain ASCII."""
    if setting.hf_model.is_dir():
        return
    unfinished = setting.models / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    setting.models.mkdir(parents=True, exist_ok=True)
    run_step(f"making {setting.shape} with random weights",
             [setting.binary, "make-model", "--shape", setting.shape, "--seed", "0", unfinished],
             setting.log("model"), "`millrace make-model --help` lists the shapes.")
    answer_in_ascii(unfinished)
    unfinished.rename(setting.hf_model)


def plain(token):
    text = token.replace(SPACE, " ")
    return all(" " <= letter <= "~" for letter in text)


def answer_in_ascii(folder):
    """Quarters the output rows of all other tokens, so that greedy answers do without them.

    Bytes that are no valid UTF-8 are held back by servers or end the stream in an error, which
    would be measured. Rows of zeros would do too, but are lighter to store in some formats.
    """
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    quiet = [number for token, number in tokenizer["model"]["vocab"].items()
             if number in special or not plain(token)]
    with open(folder / "model.safetensors", "r+b") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        head = header.get("lm_head.weight") or header["model.embed_tokens.weight"]
        if head["dtype"] != "BF16":
            raise ValueError("the weights have to be bf16")
        row_bytes = head["shape"][1] * 2
        begin = 8 + header_bytes + head["data_offsets"][0]
        for number in quiet:
            file.seek(begin + number * row_bytes)
            row = bytearray(file.read(row_bytes))
            # The upper byte of a bf16 is its sign and all of the exponent but the last bit.
            row[1::2] = row[1::2].translate(QUARTER)
            file.seek(begin + number * row_bytes)
            file.write(row)
