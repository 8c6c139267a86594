"""The text format of /metrics (version 0.0.4): its samples, or all of it as strictly as Prometheus and promtool
read it."""
import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL}(?:,{LABEL})*)?),?\}})? (\S+)$")
COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)$")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


class Samples(dict):
    """By (name, frozenset of (label, value)): the value."""

    def family(self, name, **labels):
        """[(labels as a dict, value)] of the series with these labels."""
        wanted = set(labels.items())
        return [(dict(key[1]), value) for key, value in self.items()
                if key[0] == name and wanted <= key[1]]

    def sum(self, name, **labels):
        return sum(value for _, value in self.family(name, **labels))


def read(text):
    """The samples, whatever else there is."""
    return Samples((key_of(found)[0], float(found[3])) for found in map(SAMPLE.match, text.splitlines())
                   if found)


def key_of(sample):
    """(name, frozenset of (label, value)) of a match, and the number of labels."""
    pairs = [tuple(pair.split("=", 1)) for pair in re.findall(LABEL, sample[2] or "")]
    return (sample[1], frozenset((label, quoted[1:-1]) for label, quoted in pairs)), len(pairs)


def check_histogram(name, samples):
    series = {}
    for labels, value in samples.family(f"{name}_bucket"):
        series.setdefault(frozenset(labels.items() - {("le", labels["le"])}), []).append(
            (float(labels["le"]), value))
    for labels, buckets in series.items():
        buckets.sort()
        counts = [count for _, count in buckets]
        assert counts == sorted(counts), f"{name} {labels}: buckets are not cumulative"
        assert buckets[-1][0] == math.inf, f"{name} {labels}: no bucket for +Inf"
        assert counts[-1] == samples[f"{name}_count", labels], f"{name} {labels}: count"


def parse(text):
    """Raises an AssertionError that quotes the line that Prometheus would refuse."""
    samples, types, helped, family = Samples(), {}, set(), None
    assert text.endswith("\n"), "the last line does not end"
    for line in text.splitlines():
        comment, sample = COMMENT.match(line), SAMPLE.match(line)
        assert comment or sample, line
        if comment:
            kind, name, rest = comment.groups()
            seen = helped if kind == "HELP" else types
            assert name not in seen, f"twice: {line}"
            family = name
            if kind == "HELP":
                helped.add(name)
            else:
                assert rest in ("counter", "gauge", "histogram", "summary", "untyped"), line
                types[name] = rest
            continue
        name = sample[1]
        names = [family + suffix for suffix in SUFFIXES.get(types.get(family), ("",))]
        assert name in names, f"outside of its family: {line}"
        key, labels = key_of(sample)
        assert len(key[1]) == labels, f"a label twice: {line}"
        assert key not in samples, f"twice: {line}"
        samples[key] = float(sample[3])
        assert types[family] != "counter" or samples[key] >= 0, line
    for name, kind in types.items():
        if kind == "histogram":
            check_histogram(name, samples)
    return samples
