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

/// Everything above, the nearest first.
pub(crate) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent(path), |path| parent(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_up_ends_at_the_root() {
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a/b", "/a", "/"]);
        assert_eq!((ancestors("/").count(), parent("/a")), (0, Some("/")));
    }
}
