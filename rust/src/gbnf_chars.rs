//! Ranges of code points, for the character classes of GBNF.

pub const LAST_CHAR: u32 = 0x10_FFFF;
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

/// Sorted and apart.
pub fn merged(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match out.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => out.push((first, last)),
        }
    }
    out
}

pub fn complement(ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    let mut out = Vec::new();
    let mut next = 0;
    for (first, last) in merged(ranges) {
        if next < first {
            out.push((next, first - 1));
        }
        next = last + 1;
    }
    if next <= LAST_CHAR {
        out.push((next, LAST_CHAR));
    }
    out
}

/// Without surrogates, which no text has.
pub fn scalars(ranges: &[(u32, u32)]) -> Vec<(char, char)> {
    let mut out = Vec::new();
    for &(first, last) in ranges {
        let below = (first, last.min(SURROGATES.0 - 1));
        let above = (first.max(SURROGATES.1 + 1), last);
        for (first, last) in [below, above] {
            if let (true, Some(a), Some(b)) =
                (first <= last, char::from_u32(first), char::from_u32(last))
            {
                out.push((a, b));
            }
        }
    }
    out
}
