//! Durations as Go programs write them: `300ms`, `1h30m`, `1.5s`.

use std::time::Duration;

/// Reads a duration; the error says what is wrong with it. Never negative: nothing here can be.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration such as 300ms, 10s or 1h30m");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let unit_ns: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60 * 1_000_000_000,
            "h" => 3600 * 1_000_000_000,
            _ => return Err(bad()),
        };
        total = nanoseconds(number, unit_ns).and_then(|part| total.checked_add(part)).ok_or_else(bad)?;
        rest = after;
    }
    Ok(Duration::from_nanos(total))
}

/// `number` units, where the number may have a fraction; what is finer than a nanosecond is dropped.
fn nanoseconds(number: &str, unit_ns: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = whole.checked_mul(unit_ns)?;
    let mut part = unit_ns;
    for digit in fraction.chars() {
        part /= 10;
        total = total.checked_add(u64::from(digit.to_digit(10)?) * part)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unit files and manifests carry these; one misread by a factor of sixty compacts the wrong history.
    #[test]
    fn durations_mean_what_go_means_by_them() {
        for (text, ms) in [
            ("300ms", 300),
            ("5s", 5_000),
            ("1h30m", 5_400_000),
            ("10m", 600_000),
            ("1.5s", 1_500),
            (".5s", 500),
            ("1m0.25s", 60_250),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse("1us2ns"), Ok(Duration::from_nanos(1_002)));
        for text in ["", "5", "s", "-1s", "5x", "1h 30m", "1.2.3s", ".s", "99999999999h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
