//! Paths of znodes, as far as watches need them. Which are legal is the state's business.

/// The path of the znode above; none above the root.
pub(crate) fn parent(path: &str) -> Option<&str> {
    if path.len() <= 1 {
        return None;
    }
    match path.rfind('/')? {
        0 => Some("/"),
        at => Some(&path[..at]),
    }
}

/// The znode above whose path is so long, if there is one.
pub(crate) fn ancestor(path: &str, length: usize) -> Option<&str> {
    match length {
        0 => None,
        1 => (path.len() > 1).then_some("/"),
        _ => (path.as_bytes().get(length) == Some(&b'/')).then(|| &path[..length]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recursive watch hears of what is below it, and of nothing whose name only begins the same.
    #[test]
    fn ancestors_end_where_a_name_ends() {
        let above = |path| (0..9).filter_map(|length| ancestor(path, length)).collect::<Vec<_>>();
        assert_eq!(above("/a/bc/d"), ["/", "/a", "/a/bc"]);
        assert_eq!(above("/é/b"), ["/", "/é"]);
        assert_eq!((above("/").len(), parent("/a")), (0, Some("/")));
    }
}
