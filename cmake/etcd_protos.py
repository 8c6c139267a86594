#!/usr/bin/env python3
"""Makes the two .proto files that the etcd client is generated from, out of etcd's own.

Takes etcd's rpc.proto and kv.proto as they are installed and keeps the services that a client of
keys, leases and watches calls, with the messages these need. Go's annotations and the HTTP
gateway's are dropped, so that their files are not needed, and what is generated is the light
runtime's: it compiles in a fraction of the time.

usage: etcd_protos.py GO_ETCD_FOLDER OUTPUT_FOLDER
"""
import pathlib
import re
import sys

SERVICES = ("KV", "Watch", "Lease")
LITE = "option optimize_for = LITE_RUNTIME;\n"
BLOCK = re.compile(r"^(service|message|enum)\s+(\w+)\s*\{", re.MULTILINE)


def closing_brace(text, start):
    """The index just after the brace that closes the first one behind `start`."""
    depth = 0
    for index in range(text.index("{", start), len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    raise ValueError("a brace is never closed")


def without_options(text):
    text = re.sub(r"//[^\n]*", "", text)
    while (found := re.search(r"option\s*\([\w.]+\)\s*=\s*\{", text)) is not None:
        end = closing_brace(text, found.start())
        text = text[:found.start()] + text[end:].lstrip(" ;")
    text = re.sub(r"option\s*\([\w.]+\)\s*=\s*[^;]*;", "", text)
    text = re.sub(r"\[\s*\([\w.]+\)\s*=\s*[^\]]*\]", "", text)
    return text


def blocks(text):
    """Top-level services, messages and enums: name -> (kind, source)."""
    found, at = {}, 0
    while (match := BLOCK.search(text, at)) is not None:
        at = closing_brace(text, match.start())
        found[match.group(2)] = (match.group(1), text[match.start():at])
    return found


def needed(all_blocks):
    """The names that the services reach, services first."""
    names, waiting = [], [name for name in SERVICES]
    while waiting:
        name = waiting.pop(0)
        if name in names or name not in all_blocks:
            continue
        names.append(name)
        waiting += [word for word in re.findall(r"\w+", all_blocks[name][1]) if word in all_blocks]
    return names


def main():
    source, out = map(pathlib.Path, sys.argv[1:])
    kv_text = without_options((source / "etcd/mvcc/mvccpb/kv.proto").read_text())
    rpc_text = without_options((source / "etcd/etcdserver/etcdserverpb/rpc.proto").read_text())
    rpc = blocks(rpc_text)
    missing = [name for name in SERVICES if name not in rpc]
    if missing:
        sys.exit(f"etcd's rpc.proto has no service {', '.join(missing)}")
    kept = "\n".join(rpc[name][1] for name in needed(rpc))
    out.mkdir(parents=True, exist_ok=True)
    (out / "kv.proto").write_text(
        'syntax = "proto3";\npackage mvccpb;\n' + LITE
        + "\n".join(source for _, source in blocks(kv_text).values()) + "\n")
    (out / "rpc.proto").write_text(
        'syntax = "proto3";\npackage etcdserverpb;\nimport "etcd/kv.proto";\n' + LITE + kept + "\n")


if __name__ == "__main__":
    main()
