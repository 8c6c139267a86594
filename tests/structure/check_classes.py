#!/usr/bin/env python3
"""Fails on a class of src/ that nobody can hold in the head.

A class may have 700 lines (its body and the bodies of its functions, comments included) and 40
private member functions. Classes over a limit are listed in large_classes.txt with their present
size. They may only shrink, and a class that fits leaves the list.

    check_classes.py [--list N]     prints the N largest classes as well
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTED = pathlib.Path(__file__).with_name("large_classes.txt")
LINES_MAX = 700
PRIVATE_FUNCTIONS_MAX = 40
CLASS = re.compile(r"\b(?:class|struct)\s+(?:[A-Z_]+\([^)]*\)\s+)?(\w+)(?:\s+final)?\s*(?::[^;{]*)?$")
TYPE = re.compile(r"\b(?:class|struct|union|enum)\b")
NAMESPACE = re.compile(r"\bnamespace\s+([\w:]*)\s*$")
# The name that a definition outside its class begins with: Outer::Inner::Function(
MEMBER = re.compile(r"((?:\w+::)+)~?\w+(?:\s*\S{1,3})?\s*\(")
ACCESS = re.compile(r"\b(public|private|protected)\s*:(?!:)")


def plain(text):
    """The text without comments, strings and preprocessor lines, line for line."""
    def blank(match):
        return "\n" * match.group(0).count("\n") or " "
    return re.sub(r'/\*.*?\*/|//[^\n]*|R"\w*\(.*?\)\w*"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
                  r"|^[ \t]*#(?:\\\n|[^\n])*", blank, text, flags=re.S | re.M)


def scopes(text):
    """Yields (head, first line, last line, class of the scope around, its access label, body)."""
    stack = []  # [head, line, class name, access]
    line, since = 1, 0
    for at, char in enumerate(text):
        if char == "\n":
            line += 1
        elif char in "{;:}":
            head = text[since:at]
            label = ACCESS.search(text[since:at + 1]) if char == ":" else None
            if label and text[at + 1:at + 2] != ":" and stack:
                stack[-1][3] = label.group(1)
                since = at + 1
            elif char == "{":
                name = CLASS.search(head.strip())
                access = "private" if re.search(r"\bclass\b", head) else "public"
                begin = line - head.lstrip().count("\n")
                stack.append([head.strip(), begin, name and name.group(1), access])
                since = at + 1
            elif char == "}":
                if stack:
                    yield "scope", *stack.pop(), line, stack[-1] if stack else None
                since = at + 1
            elif char == ";":
                yield "end", head.strip(), line, None, None, line, stack[-1] if stack else None
                since = at + 1


def measure():
    lines = collections.Counter()
    private = collections.Counter()
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cc") or re.search(r"_test\.cc$|testing", str(path)):
            continue
        folder = str(path.parent.relative_to(ROOT))
        for kind, head, begin, name, _, end, around in scopes(plain(path.read_text())):
            inside = around and around[2]
            if kind == "scope" and name:
                lines[folder, name] += end - begin + 1
            elif kind == "scope" and not inside and "(" in head:
                owner = MEMBER.search(head.split("(")[0] + "(")
                if owner:
                    lines[folder, owner.group(1).split("::")[0]] += end - begin + 1
            # A declaration or a definition inside a class. Constructors and operators count too.
            if inside and around[3] == "private" and re.search(r"\w\s*\(", head):
                if not (name or TYPE.match(head) or re.match(r"using|friend", head)
                        or re.search(r"std::function<", head.split("(")[0])):
                    private[folder, inside] += 1
    return lines, private


def main():
    lines, private = measure()
    sizes = {f"{folder} {name}": (count, private[folder, name])
             for (folder, name), count in lines.items()}
    if len(sys.argv) > 2 and sys.argv[1] == "--list":
        for key, size in sorted(sizes.items(), key=lambda item: item[1], reverse=True)[:int(sys.argv[2])]:
            print(f"{size[0]:6d} lines {size[1]:4d} private functions  {key}")
    listed = {}
    for text in LISTED.read_text().splitlines():
        if text and not text.startswith("#"):
            folder, name, line_count, functions = text.split()
            listed[f"{folder} {name}"] = (int(line_count), int(functions))
    problems = []
    for key, (line_count, functions) in sorted(sizes.items()):
        limit = listed.pop(key, None)
        large = line_count > LINES_MAX or functions > PRIVATE_FUNCTIONS_MAX
        if limit is None and large:
            problems.append(f"{key}: {line_count} lines, {functions} private functions; the limits are "
                            f"{LINES_MAX} and {PRIVATE_FUNCTIONS_MAX}: split it by meaning")
        elif limit is not None and not large:
            problems.append(f"{key} fits now: take it out of large_classes.txt")
        elif limit is not None and (line_count > limit[0] or functions > limit[1]):
            problems.append(f"{key}: grew to {line_count} lines, {functions} private functions from "
                            f"{limit[0]} and {limit[1]}")
    problems += [f"{key} does not exist: take it out of large_classes.txt" for key in listed]
    print("\n".join(problems) or f"classes: {len(sizes)} fit")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
