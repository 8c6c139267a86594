//! strftime for a civil time given by the caller: the directives of chat templates, in English.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::SignedDuration;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
/// The directives that mean the same to jiff and to Python.
const SHARED: &str = "YymdeHIMSjpBbhAawFTDR";

/// `format` in jiff's terms. None for a directive outside the supported set; jiff knows more of
/// them, but Python gives some another meaning.
fn translate(format: &str) -> Option<String> {
    let mut out = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(ch) = chars.next() {
        if ch != '%' {
            out.push(ch);
            continue;
        }
        let mut directive = chars.next()?;
        let mut flag = "";
        if directive == '-' {
            flag = "-";
            directive = chars.next()?;
        }
        match directive {
            'f' => out.push_str("000000"),
            'z' | 'Z' => {} // as Python prints a time without a zone
            '%' => out.push_str("%%"),
            _ if SHARED.contains(directive) => {
                out.push('%');
                out.push_str(flag);
                out.push(directive);
            }
            _ => return None,
        }
    }
    Some(out)
}

/// None for a directive outside the supported set. A time after year 9999 is shown as the end of
/// that year.
pub fn strftime(format: &str, seconds: i64) -> Option<String> {
    let time = EPOCH.saturating_add(SignedDuration::from_secs(seconds));
    strtime::format(translate(format)?, time).ok()
}
