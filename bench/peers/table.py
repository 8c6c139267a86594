"""Medians, ratios and Markdown. Pure."""
import statistics

# Key of load.figures, heading, decimals, whether more is better.
def columns(clients):
    return (("one_ttft_ms", "1 client: TTFT, ms", 0, False),
            ("one_tpot_ms", "TPOT, ms", 1, False),
            ("one_tok_s", "output tok/s", 1, True),
            ("many_ttft_mean_ms", f"{clients} clients: TTFT mean, ms", 0, False),
            ("many_ttft_ms", "TTFT median, ms", 0, False),
            ("many_tpot_ms", "TPOT, ms", 1, False),
            ("many_tok_s", "output tok/s", 0, True),
            ("prefill_tok_s", "prefill of 512, tok/s", 0, True))


def medians(rounds):
    """One dict of figures from those of the rounds."""
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def ratio(ours, theirs, more_is_better):
    """How many times as good ours is; above 1 is better than theirs."""
    if min(ours, theirs) <= 0:
        return None
    return ours / theirs if more_is_better else theirs / ours


def best(peers, key, more_is_better):
    """The best of several peers' figures, each column for itself."""
    return (max if more_is_better else min)(figures[key] for figures in peers)


def row(cells):
    return "| " + " | ".join(cells) + " |"


def heading(first, clients):
    cells = [first] + [name for _, name, _, _ in columns(clients)]
    return [row(cells), "|" + "---|" * len(cells)]


def ratio_row(name, ours, theirs, clients):
    cells = []
    for key, _, _, more_is_better in columns(clients):
        value = ratio(ours[key], theirs[key], more_is_better)
        cells.append("-" if value is None else f"{value:.2f}")
    return row([name] + cells)


def spread(rounds):
    """Least to greatest of the main figure, where there is more than one round."""
    values = [one["many_tok_s"] for one in rounds]
    return f" ({min(values):.0f} to {max(values):.0f})" if len(values) > 1 else ""


def figure_table(rounds, reasons, clients):
    """rounds: {title: [figures of a round]}; reasons: {title: why there are none}."""
    lines = heading("server", clients)
    for title, ones in rounds.items():
        middle = medians(ones)
        cells = [f"{middle[key]:.{decimals}f}" + (spread(ones) if key == "many_tok_s" else "")
                 for key, _, decimals, _ in columns(clients)]
        lines.append(row([title] + cells))
    for title, reason in reasons.items():
        reason = " ".join(reason.split()).replace("|", "/")
        lines.append(row([title, reason] + [""] * (len(columns(clients)) - 1)))
    return lines


def ratio_table(rounds, ours, clients):
    """Our figures against the best of the others and against each."""
    middle = {title: medians(ones) for title, ones in rounds.items()}
    mine = middle.pop(ours, None)
    if mine is None or not middle:
        return []
    lines = heading(f"{ours} against", clients)
    if len(middle) > 1:
        top = {key: best(middle.values(), key, more) for key, _, _, more in columns(clients)}
        lines.append(ratio_row("the best of each column", mine, top, clients))
    return lines + [ratio_row(title, mine, theirs, clients) for title, theirs in middle.items()]


def report(head, rounds, reasons, ours, clients):
    lines = [*head, "", *figure_table(rounds, reasons, clients)]
    ratios = ratio_table(rounds, ours, clients)
    if ratios:
        lines += ["", "Ratios; above 1 is better (for times, the other's time divided by ours).",
                  "", *ratios]
    return "\n".join(lines)
