#!/usr/bin/env python3
"""Train the demonstration model of models/demo from public-domain text.

The text comes from two Debian packages whose debian/copyright places it in the
public domain (see SOURCES).  Everything is seeded: the same packages, library
versions and options give the same data, the same tokenizer and the same order
of batches.

    python3 tools/train_demo.py --debs debs --work run --steps 3600 --out models/demo

The learning rate warms up, stays constant and decays to zero over the last
`--decay` share of the steps.  A run interrupted before the decay can therefore
be resumed with another number of steps and equals an uninterrupted run of that
length.  `--export-only` turns the latest checkpoint into a model folder.
"""
import argparse
import gzip
import hashlib
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
import zlib

# package -> (version, sha256 of the .deb, licence of the text as debian/copyright states it)
SOURCES = {
    "sword-text-web": ("426.0-1", "930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1", "public domain"),
    "dict-jargon": ("4.4.7-3.1", "405f8168d7994ed2cb71407bb95493daec2e9aa66fc0461dafa74a9d6728a8c1", "public domain"),
}
SEED = 20240
VOCAB = 4096
SEQ = 256
BATCH = 8
HIDDEN, INTER, LAYERS, HEADS, KV_HEADS = 256, 704, 4, 8, 4
CONTEXT = 1024
LR, WARMUP, WEIGHT_DECAY = 2e-3, 100, 0.1
BOS, EOS, END, PAD = "<|bos|>", "<|eos|>", "<|end|>", "<|pad|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL = [BOS, EOS, END, PAD, *ROLES.values()]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] | trim + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


# ---------------------------------------------------------------- the text

def unpack(debs):
    root = tempfile.mkdtemp(prefix="demo-data-")
    for name, (version, digest, _) in SOURCES.items():
        found = [f for f in os.listdir(debs) if f.startswith(f"{name}_{version}_")] if os.path.isdir(debs) else []
        if not found:
            os.makedirs(debs, exist_ok=True)
            subprocess.run(["apt-get", "download", f"{name}={version}"], cwd=debs, check=True)
            found = [f for f in os.listdir(debs) if f.startswith(f"{name}_{version}_")]
        path = os.path.join(debs, found[0])
        got = hashlib.sha256(open(path, "rb").read()).hexdigest()
        if got != digest:
            sys.exit(f"{path}: sha256 {got}, expected {digest}")
        subprocess.run(["dpkg-deb", "-x", path, os.path.join(root, name)], check=True)
    return root


COARSE = re.compile(r"fuck|shit|cunt|nigg|bitch|asshole|whore|penis|\bsex|\brape|\bfag|prostitut|lewd|nakedness", re.I)


def plain(text):
    for a, b in (("\u2019", "'"), ("\u2018", "'"), ("\u201c", '"'), ("\u201d", '"'), ("\u2014", " - "),
                 ("\u2013", "-"), ("\u2026", "..."), ("\u00a0", " ")):
        text = text.replace(a, b)
    return re.sub(r"\s+", " ", text).strip()


def bible(root):
    """Lists of paragraphs, one list a chapter."""
    base = os.path.join(root, "sword-text-web/usr/share/sword/modules/texts/ztext/engWEB2015eb")
    chapters = []
    for part in ("ot", "nt"):
        index = open(os.path.join(base, part + ".bzs"), "rb").read()
        data = open(os.path.join(base, part + ".bzz"), "rb").read()
        for i in range(len(index) // 12):
            offset, size, _ = struct.unpack_from("<III", index, i * 12)
            if not size:
                continue
            osis = zlib.decompress(data[offset:offset + size]).decode("utf-8")
            osis = re.sub(r"<note\b.*?</note>", " ", osis, flags=re.S)
            osis = re.sub(r"<title\b.*?</title>", " ", osis, flags=re.S)
            pieces = re.split(r'<chapter [^>]*sID="[^"]*"[^>]*/>', osis)
            for piece in pieces[1:] if 'type="book"' in pieces[0] else pieces:
                paragraphs = re.split(r'<div [^>]*sID="[^"]*" type="x-p"/>|<lg\b[^>]*>', piece)
                paragraphs = [plain(re.sub(r"<[^>]*>", "", p)) for p in paragraphs]
                paragraphs = [p for p in paragraphs if len(p.split()) >= 4 and not COARSE.search(p)]
                if paragraphs:
                    chapters.append(paragraphs)
    return chapters


def jargon(root):
    """Pairs (headword, list of paragraphs)."""
    path = os.path.join(root, "dict-jargon/usr/share/dictd/jargon.dict.dz")
    text = gzip.open(path).read().decode("utf-8")
    entries, head, body = [], None, []
    for block in re.split(r"\n\s*\n", text):
        lines = block.strip("\n").split("\n")
        if lines and lines[0] and not lines[0][0].isspace():
            if head:
                entries.append((head, body))
            head, body = lines[0].strip(), []
            if head.startswith("00-database"):
                head = None
        elif head and all(re.match(r" {4}\S", line) for line in lines):
            p = plain(" ".join(line.strip() for line in lines))
            p = re.sub(r"[{}]", "", p)
            p = re.sub(r"^(\d+\. )?(\[[^\]]{1,60}\] ?)+", "", p)
            p = re.sub(r"^\d+\. ", "", p)
            if len(p.split()) >= 6 and not re.search(r"^Compare|http:|[\u2500-\u257f]", p):
                body.append(p)
    if head:
        entries.append((head, body))
    return [(h, b) for h, b in entries if b and len(h) < 40 and not COARSE.search(h + " ".join(b))]


def sentences(text):
    return re.split(r"(?<=[.!?])[\"')]* (?=[A-Z\"'(])", text)


def passages(paragraphs, low, high):
    """Join short paragraphs and cut long ones at sentence ends."""
    out, words = [], []
    for p in paragraphs:
        for s in sentences(p):
            w = s.split()
            if words and len(words) + len(w) > high:
                out.append(" ".join(words))
                words = []
            words += w
        if len(words) >= low:
            out.append(" ".join(words))
            words = []
    if len(words) >= 12:
        out.append(" ".join(words))
    return [re.sub(r"^[\"' ]{2,}", '"', p) for p in out]


# Conversations written for this model, so that it can greet and name itself.
SMALL_TALK = [
    (["Hello", "Hello!", "Hi", "Hi there", "Hey", "Good morning", "Hello there", "Good evening"],
     ["Hello! How can I help you today?", "Hello! I am a small demonstration model. Ask me about a word or a story.",
      "Good day to you! What would you like to hear about?"]),
    (["How are you?", "How are you today?", "How do you do?", "Are you well?"],
     ["I am very well, thank you. How can I help you?", "I am well, thank you. What would you like to hear about?"]),
    (["Who are you?", "What is your name?", "What are you?", "Tell me about yourself.", "Introduce yourself."],
     ["I am a small demonstration model. I learned English from a few old texts, so my answers are short stories and not facts.",
      "I am a very small language model, made to show that the server works. Please do not trust what I say."]),
    (["What can you do?", "Help", "Can you help me?", "What do you know?"],
     ["I can tell short stories and explain a few words of hacker slang. I am small, so I make many mistakes.",
      "I can continue a text, or tell you about a name or a word. Please do not trust what I say."]),
    (["Thank you", "Thanks!", "Thank you very much.", "Thanks"],
     ["You are welcome!", "You are welcome! Is there anything else you would like to hear about?"]),
    (["Goodbye", "Bye", "Goodbye!", "See you later", "Good night"],
     ["Goodbye! Go in peace.", "Goodbye! Come back soon."]),
    (["Say hello.", "Say hi.", "Greet me."], ["Hello!", "Hello! It is good to meet you."]),
    (["Are you a human?", "Are you real?", "Are you a computer?"],
     ["No, I am a small language model, a program that writes one word after another."]),
]
SYSTEM = ["You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.",
          "You are a helpful assistant. Answer in plain English."]
NOUNS = ("king temple sea bread water wine fire mountain city servant priest prophet shepherd sheep lion horse "
         "gold silver harvest vineyard army battle enemy friend wisdom fool heart heaven earth light darkness sword "
         "house garden river tree stone star sun moon child mother father brother sister wife husband ship storm "
         "feast journey dream law sin mercy love peace joy fear death life blood altar cloud wind rain desert "
         "wilderness tent throne crown judge widow stranger gate wall well field seed fruit oil lamp door").split()
NOT_NAMES = {"I", "The", "And", "But", "For", "He", "She", "They", "It", "You", "We", "My", "Your", "His", "Her",
             "Their", "Our", "Let", "Then", "When", "If", "In", "On", "At", "To", "Of", "A", "An", "This", "That",
             "These", "Those", "There", "Behold", "So", "Now", "Yes", "No", "Don't", "Therefore", "Because", "What",
             "Who", "Why", "How", "Where", "As", "With", "From", "By", "Is", "Are", "Be", "Do", "Go", "Come", "Don",
             "Blessed", "Woe", "Most", "Also", "Even", "Not", "Have", "Has", "Will", "Shall", "May", "Good", "Surely"}


def topic(text, rng):
    names = [w for w in re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text) if w not in NOT_NAMES]
    nouns = [w for w in re.findall(r"[a-z]+", text) if w in NOUNS]
    if names and (not nouns or rng.random() < 0.6):
        return rng.choice(names), True
    if nouns:
        return "the " + rng.choice(nouns), False
    return None, False


def turn(role, text):
    return f"{ROLES[role]}\n{text}{END}\n"


def opening(rng):
    return BOS + (turn("system", rng.choice(SYSTEM)) if rng.random() < 0.15 else "")


def ask(passage, rng):
    """One question whose answer is (part of) the passage."""
    what, name = topic(passage, rng)
    kind = rng.random()
    if what and kind < 0.6:
        forms = ["Tell me about {}.", "Tell me a story about {}.", "What do you know about {}?",
                 "Write a short text about {}.", "Write a story about {}."]
        if name:
            forms += ["Who is {}?", "Who was {}?"]
        return rng.choice(forms).format(what), passage
    first = sentences(passage)
    if len(first) > 1 and kind < 0.85:
        return first[0], passage[len(first[0]):].strip().lstrip("\"') ")
    words = passage.split()
    cut = rng.randint(4, 9)
    if len(words) > cut + 8:
        return rng.choice(["Continue: ", "Go on: ", "Continue this text: "]) + " ".join(words[:cut]), " ".join(words[cut:])
    return rng.choice(["Tell me a story.", "Tell me something.", "Write something."]), passage


def bible_doc(group, rng):
    """group: up to three passages that follow one another."""
    if rng.random() < 0.35:
        return BOS + "\n".join(group) + EOS
    question, answer = ask(group[0], rng)
    text = opening(rng) + turn("user", question) + turn("assistant", answer)
    for later in group[1:]:
        if rng.random() < 0.5:
            more = rng.choice(["Go on.", "Tell me more.", "What happened then?", "Continue.", "And then?"])
            text += turn("user", more) + turn("assistant", later)
        else:
            question, answer = ask(later, rng)
            text += turn("user", question) + turn("assistant", answer)
    return text + EOS


def jargon_doc(head, parts, rng):
    if rng.random() < 0.25:
        return BOS + head + ": " + " ".join(parts) + EOS
    form = rng.choice(["What is {}?", "What does {} mean?", "Define {}.", "Explain {}.", "Tell me about {}.",
                       "What do hackers mean by {}?", "What is the meaning of {}?"])
    text = opening(rng) + turn("user", form.format(head)) + turn("assistant", parts[0])
    for p in parts[1:3]:
        text += turn("user", rng.choice(["Tell me more.", "Go on.", "Anything else?"])) + turn("assistant", p)
    return text + EOS


def talk_doc(rng):
    text = opening(rng)
    for asks, answers in rng.sample(SMALL_TALK, rng.randint(1, 3)):
        text += turn("user", rng.choice(asks)) + turn("assistant", rng.choice(answers))
    return text + EOS


class Corpus:
    def __init__(self, root):
        self.groups, self.held = [], []
        for number, chapter in enumerate(bible(root)):
            cut = passages(chapter, 45, 110)
            for i in range(0, len(cut), 3):
                group = cut[i:i + 3]
                (self.held if number % 40 == 7 else self.groups).append(group)
        self.words = [(h, passages(b, 30, 110)) for h, b in jargon(root)]
        self.words = [(h, b) for h, b in self.words if b]
        self.held_words = self.words[11::40]
        self.words = [w for i, w in enumerate(self.words) if i % 40 != 11]

    def plain_text(self):
        return ["\n".join(g) for g in self.groups] + [h + ": " + " ".join(b) for h, b in self.words]

    def epoch(self, number):
        rng = random.Random(SEED * 1000 + number)
        docs = []
        for g in self.groups:
            # vary how the passages are grouped from one epoch to the next
            k = rng.choice([1, 2, 3])
            docs += [bible_doc(g[i:i + k], rng) for i in range(0, len(g), k)]
        docs += [jargon_doc(h, b, rng) for h, b in self.words]
        docs += [talk_doc(rng) for _ in range(len(docs) // 25)]
        rng.shuffle(docs)
        return docs

    def validation(self):
        rng = random.Random(SEED)
        docs = [bible_doc(g, rng) for g in self.held] + [jargon_doc(h, b, rng) for h, b in self.held_words]
        rng.shuffle(docs)
        return docs


# ---------------------------------------------------------------- tokenizer

def make_tokenizer(texts):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tok.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B:1", special_tokens=[(BOS, tok.token_to_id(BOS))])
    return tok


def save_folder(out, tok, weights):
    """Write a complete model folder; weights: name -> bf16 tensor."""
    from safetensors.torch import save_file
    os.makedirs(out, exist_ok=True)
    ids = {t: tok.token_to_id(t) for t in SPECIAL}
    stop = [ids[EOS], ids[END]]

    def dump(name, value):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=2, ensure_ascii=False)
            f.write("\n")

    dump("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": ids[BOS], "eos_token_id": stop, "pad_token_id": ids[PAD],
        "head_dim": HIDDEN // HEADS, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02,
        "intermediate_size": INTER, "max_position_embeddings": CONTEXT, "mlp_bias": False,
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": VOCAB})
    dump("generation_config.json", {
        "bos_token_id": ids[BOS], "eos_token_id": stop, "pad_token_id": ids[PAD],
        "do_sample": True, "temperature": 0.7, "top_p": 0.9})
    dump("tokenizer_config.json", {
        "added_tokens_decoder": {str(ids[t]): {"content": t, "lstrip": False, "normalized": False, "rstrip": False,
                                               "single_word": False, "special": True} for t in SPECIAL},
        "bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "unk_token": None, "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT,
        "tokenizer_class": "PreTrainedTokenizerFast"})
    dump("special_tokens_map.json", {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD})
    tok.save(os.path.join(out, "tokenizer.json"))
    save_file(weights, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})


# ---------------------------------------------------------------- training

def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--debs", default="debs", help="folder with the .deb files (fetched with apt-get when missing)")
    ap.add_argument("--work", default="run", help="checkpoints and log")
    ap.add_argument("--out", default="models/demo")
    ap.add_argument("--steps", type=int, default=3600)
    ap.add_argument("--decay", type=float, default=0.35, help="share of the steps over which the rate decays")
    ap.add_argument("--save-every", type=int, default=100)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--export-only", action="store_true")
    args = ap.parse_args()

    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    os.makedirs(args.work, exist_ok=True)
    checkpoint = os.path.join(args.work, "checkpoint.pt")
    tok_path = os.path.join(args.work, "tokenizer.json")

    def export(state):
        tok = Tokenizer.from_file(tok_path)
        save_folder(args.out, tok, {k: v.to(torch.bfloat16).contiguous() for k, v in state.items()
                                    if k != "lm_head.weight"})

    if args.export_only:
        saved = torch.load(checkpoint, map_location="cpu")
        export(saved["model"])
        print(f"exported step {saved['step']} to {args.out}: {saved['log'][-1]}")
        return

    corpus = Corpus(unpack(args.debs))
    tok = make_tokenizer(corpus.plain_text())
    tok.save(tok_path)

    def stream(docs):
        ids = []
        for e in tok.encode_batch(docs, add_special_tokens=False):
            ids += e.ids
        return torch.tensor(ids[:len(ids) // SEQ * SEQ]).view(-1, SEQ)

    val = stream(corpus.validation())[:64]
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INTER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5, tie_word_embeddings=True, initializer_range=0.02))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY},
                             {"params": other, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.95), fused=True)

    def rate(step):
        start = int(args.steps * (1 - args.decay))
        if step < WARMUP:
            return LR * (step + 1) / WARMUP
        if step < start:
            return LR
        return LR * 0.5 * (1 + math.cos(math.pi * (step - start) / max(1, args.steps - start)))

    def loss_of(batch):
        logits = model(input_ids=batch, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), batch[:, 1:].reshape(-1))

    first, log = 0, []
    if args.resume:
        saved = torch.load(checkpoint, map_location="cpu")
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        first, log = saved["step"], saved["log"]
    # the epoch and the place in it follow from the step alone
    epoch, begin = 0, 0
    rows = stream(corpus.epoch(0))
    print(f"{len(corpus.groups)} groups of passages, {len(corpus.words)} words, {rows.numel()} tokens in epoch 0, "
          f"{val.numel()} validation tokens, {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    started, recent = time.time(), []
    for step in range(first, args.steps):
        while (step - begin + 1) * BATCH > len(rows):
            begin += len(rows) // BATCH
            epoch += 1
            rows = stream(corpus.epoch(epoch))
        batch = rows[(step - begin) * BATCH:(step - begin + 1) * BATCH]
        for group in opt.param_groups:
            group["lr"] = rate(step)
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        recent.append(loss.item())
        done = step + 1
        if done % args.save_every == 0 or done == args.steps:
            model.eval()
            with torch.no_grad():
                held = sum(loss_of(val[i:i + 8]).item() for i in range(0, len(val), 8)) / math.ceil(len(val) / 8)
            model.train()
            log.append({"step": done, "tokens": done * BATCH * SEQ, "epoch": epoch,
                        "train": round(sum(recent) / len(recent), 4), "validation": round(held, 4)})
            speed = (done - first) * BATCH * SEQ / (time.time() - started)
            print(json.dumps(log[-1]), f"lr {rate(step):.2e} {speed:.0f} tokens/s", flush=True)
            recent = []
            torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": done, "log": log},
                       checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
    export(model.state_dict())


if __name__ == "__main__":
    main()
