//! What stands behind the question mark.

use crate::problem::Problem;

/// The parameters of a request, in order.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn of(query: Option<&str>) -> Parameters {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescaped(name), unescaped(value))
        };
        Parameters(pairs.map(pair).collect())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(one, _)| one == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self, name: &'static str) -> Result<String, Problem> {
        let missing = || Problem::wrong("BAD_PARAMETER", format!("give {name}=..."));
        self.get(name).map(str::to_owned).ok_or_else(missing)
    }

    pub(super) fn number(&self, name: &'static str) -> Result<Option<u64>, Problem> {
        let bad = |_| Problem::wrong("BAD_PARAMETER", format!("{name} is a whole number, not negative"));
        self.get(name).map(str::parse).transpose().map_err(bad)
    }
}

/// Text as it was before it was made fit for a URL. What is not UTF-8 is replaced, and refused as a name later.
fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let code =
            text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(match (code, bytes[at]) {
            (Some(code), _) => code,
            (None, b'+') => b' ',
            (None, byte) => byte,
        });
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names with slashes and umlauts are usual; a name read wrongly is another lock.
    #[test]
    fn parameters_are_read_as_they_were_before_the_url() {
        let parameters = Parameters::of(Some("name=a%2Fb+c%C3%A4&n=7&bad=x%2&n=8"));
        assert_eq!(parameters.text("name").unwrap(), "a/b c\u{e4}");
        assert_eq!(parameters.number("n").unwrap(), Some(7));
        assert_eq!(parameters.text("bad").unwrap(), "x%2");
        assert_eq!(parameters.number("none").unwrap(), None);
        assert!(parameters.number("bad").is_err() && parameters.text("none").is_err());
    }
}
