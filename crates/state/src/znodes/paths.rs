//! Paths: how they are spelled, and which keys they stand for.
//!
//! `/` is the root. Paths that nobody could have created have keys, too, under which nothing is found: only
//! what creates something need check the spelling.

use tidelock_model::limits::ZNODE_PATH_BYTES_MAX;
use tidelock_model::{Key, KeyRange, LeaseId, SESSION_KEY, SIDE_KEY, Space, ZNODE_KEY, ZnodeError};

pub(super) const ROOT: &str = "/";
/// What ZooKeeper keeps about itself: present from the beginning, and nobody can delete it.
pub(super) const SYSTEM: &str = "/zookeeper";
pub(super) const QUOTA: &str = "/zookeeper/quota";
pub(super) const CONFIG: &str = "/zookeeper/config";

const REAPABLE: u8 = b'C';
const FIGURES: u8 = b'Q';

fn key(kind: u8, rest: &[u8]) -> Key {
    Key::from_parts(&[&[Space::Tree as u8, kind], rest])
}

/// The key of a znode; nothing for what cannot be a path at all.
pub(super) fn node_key(path: &str) -> Option<Key> {
    let last_slash = path.rfind('/')?;
    if path == ROOT {
        return Some(key(ZNODE_KEY, &[]));
    }
    let (parent, name) = (&path[..last_slash], &path[last_slash + 1..]);
    Some(Key::from_parts(&[&[Space::Tree as u8, ZNODE_KEY], parent.as_bytes(), &[0], name.as_bytes()]))
}

/// Whether a znode's key is that of a child of [`QUOTA`].
pub(super) fn is_child_of_quota(key: &Key) -> bool {
    let rest = key.name().get(1..).and_then(|path| path.strip_prefix(QUOTA.as_bytes()));
    rest.is_some_and(|rest| rest.first() == Some(&0))
}

/// The name of a znode's key within its parent.
pub(super) fn name_of(key: &Key) -> Option<String> {
    let (_, name) = key.name().split_at_checked(key.name().iter().position(|byte| *byte == 0)? + 1)?;
    String::from_utf8(name.to_vec()).ok()
}

pub(super) fn side_key(path: &str) -> Key {
    key(SIDE_KEY, path.as_bytes())
}

pub(super) fn reapable_key(path: &str) -> Key {
    key(REAPABLE, path.as_bytes())
}

pub(super) fn figures_key(path: &str) -> Key {
    key(FIGURES, path.as_bytes())
}

/// All of [`reapable_key`].
pub(super) fn reapable_keys() -> KeyRange {
    KeyRange::prefix(Space::Tree, &[REAPABLE])
}

/// The path of a [`reapable_key`].
pub(super) fn reapable_path(key: &Key) -> Option<&str> {
    std::str::from_utf8(key.name().get(1..)?).ok()
}

pub(super) fn session_key(session: LeaseId) -> Key {
    key(SESSION_KEY, &session.0.to_be_bytes())
}

/// All of [`session_key`].
pub(super) fn session_keys() -> KeyRange {
    KeyRange::prefix(Space::Tree, &[SESSION_KEY])
}

/// The session of a [`session_key`].
pub(super) fn session_of(key: &Key) -> Option<LeaseId> {
    Some(LeaseId(i64::from_be_bytes(key.name().get(1..)?.try_into().ok()?)))
}

/// All of [`node_key`].
pub(super) fn node_keys() -> KeyRange {
    KeyRange::prefix(Space::Tree, &[ZNODE_KEY])
}

/// How a path is spelled in front of its children's names.
fn as_parent(path: &str) -> &[u8] {
    if path == ROOT { &[] } else { path.as_bytes() }
}

fn between(path: &str, first: u8) -> KeyRange {
    let edge = |last: u8| Key::from_parts(&[&[Space::Tree as u8, ZNODE_KEY], as_parent(path), &[last]]);
    KeyRange { start: edge(first), end: edge(first + 1) }
}

/// The keys of a znode's children.
pub(super) fn children(path: &str) -> KeyRange {
    between(path, 0)
}

/// The keys of everything below a znode's children.
pub(super) fn below_children(path: &str) -> KeyRange {
    between(path, b'/')
}

/// The parent of a path that was found to exist; the root's is itself.
pub(super) fn parent_of(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => ROOT,
        Some(at) => &path[..at],
    }
}

/// The parent of a path to create, before anything else is known of it.
pub(super) fn parent_to_create_in(path: &str) -> Result<&str, ZnodeError> {
    if !path.contains('/') || path.contains('\0') {
        return Err(ZnodeError::BadArguments);
    }
    Ok(parent_of(path))
}

/// The same of a path to delete.
pub(super) fn parent_to_delete_from(path: &str) -> Result<&str, ZnodeError> {
    if [ROOT, SYSTEM, QUOTA, CONFIG].contains(&path) {
        return Err(ZnodeError::BadArguments);
    }
    parent_to_create_in(path)
}

/// Whether a path is spelled as ZooKeeper allows: its clients check the same before they send one.
pub(super) fn check(path: &str) -> Result<(), ZnodeError> {
    let is_name = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.chars().any(is_forbidden);
    let is_valid = path.len() <= ZNODE_PATH_BYTES_MAX
        && (path == ROOT || path.strip_prefix('/').is_some_and(|names| names.split('/').all(is_name)));
    if is_valid { Ok(()) } else { Err(ZnodeError::BadArguments) }
}

/// ZooKeeper counts in halves of UTF-16, so that everything written with two of them is forbidden with the
/// halves themselves.
fn is_forbidden(char: char) -> bool {
    matches!(char, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::znode_path;

    /// What is forbidden here and allowed there breaks a client; the other way round a znode nobody can read.
    #[test]
    fn paths_are_spelled_as_zookeeper_spells_them() {
        for good in ["/", "/a", "/a/b.c", "/...", "/a/..b", "/.a", "/\u{20}", "/é", "/\u{d7ff}", "/\u{ffef}"] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        let bad = ["", "a", "a/b", "//", "/a/", "/a//b", "/.", "/..", "/a/./b", "/a/..", "/a\0", "/\u{1}", "/\u{1f}"];
        for bad in bad.into_iter().chain(["/\u{7f}", "/\u{9f}", "/\u{e000}", "/\u{f8ff}", "/\u{fff0}", "/\u{1f600}"]) {
            assert_eq!(check(bad), Err(ZnodeError::BadArguments), "{bad:?}");
        }
        let long = format!("/{}", "a".repeat(ZNODE_PATH_BYTES_MAX - 1));
        assert_eq!((check(&long), check(&format!("{long}a"))), (Ok(()), Err(ZnodeError::BadArguments)));
    }

    /// Children are counted as a range: a sibling whose name continues another's must not be in it.
    #[test]
    fn children_and_descendants_are_ranges_of_keys() {
        let key = |path| node_key(path).unwrap();
        for path in ["/a/b", "/a/\u{1}", "/a/~"] {
            assert!(children("/a").contains(&key(path)) && !below_children("/a").contains(&key(path)));
            assert!(below_children("/").contains(&key(path)) && !children("/").contains(&key(path)));
        }
        assert!(below_children("/a").contains(&key("/a/b/c")) && !children("/a").contains(&key("/a/b/c")));
        for path in ["/", "/a", "/a0", "/ab/c", "/a.b/c", "/b"] {
            assert!(!children("/a").contains(&key(path)) && !below_children("/a").contains(&key(path)), "{path}");
        }
        assert!(children("/").contains(&key("/a")) && !children("/").contains(&key("/")));
    }

    #[test]
    fn a_key_tells_its_path_and_name() {
        for path in ["/", "/a", "/a/b", "/a/b/é"] {
            assert_eq!(znode_path(&node_key(path).unwrap()).as_deref(), Some(path));
        }
        assert_eq!(name_of(&node_key("/a/b").unwrap()).as_deref(), Some("b"));
        assert_eq!((znode_path(&side_key("/a")), node_key("a")), (None, None));
        assert_eq!((parent_of("/a/b"), parent_of("/a"), parent_of("//x")), ("/a", "/", "/"));
    }
}
