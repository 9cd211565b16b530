//! The small world the random requests live in: few znodes, so that requests meet; the odd ones among them.

use super::call::{Acl, Data};
use crate::random::Random;

/// Znodes below the root of a round.
const PATHS: [&str; 12] =
    ["/a", "/b", "/c", "/a/a", "/a/b", "/b/a", "/b/b", "/c/x", "/a/a/x", "/a/a/y", "/b/a/x", "/c/x/y"];
/// Znodes that may be locked for good: nothing is ever made below them, and their parents stay open to whoever
/// tidies up.
const LOCKABLE: [&str; 2] = ["/a/l", "/b/l"];
/// What sequential names begin with.
const SEQUENCES: [&str; 5] = ["/s-", "/", "/a/s-", "/b/", "/c/x/n"];
/// Not paths, or not of anybody's znodes; below the root of the round.
const BAD_BELOW: [&str; 12] =
    ["/", "/a/", "//a", "/a//b", "/.", "/a/.", "/a/../b", "/a/...", "/a\u{1}", "/a\u{0}b", "/\u{7f}x", "/nobody/here"];
/// The same, from the top.
const BAD_ABOVE: [&str; 5] = ["", "a", "/", "/zookeeper", "//"];
/// Znodes that are there without being made, and one that is not.
const SYSTEM: [&str; 5] = ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config", "/zookeeper/none"];
/// Sequential znodes that are remembered.
const REMEMBERED: usize = 10;

/// Whoever tidies up, and the entry that lets it.
pub(super) const JANITOR: &str = "root:secret";
const JANITOR_ID: &str = "root:J1scEM42CKaLPP5+ElgpgGsuONg=";
/// Users with their passwords, and as access lists have them.
pub(super) const USERS: [(&str, &str); 2] =
    [("u1:p1", "u1:fpT/y03U+EjItKZOSLGvjnJlyng="), ("u2:p2", "u2:o9NxcCGDPOlcV7JVhmKHOf5ctVE=")];
/// All that can be allowed.
pub(super) const ALL: i32 = 31;

/// True once in `times` on average.
pub(super) fn one_in(random: &mut Random, times: u64) -> bool {
    random.below(times) == 0
}

/// One of these.
pub(super) fn pick<T: Clone>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize].clone()
}

/// What is known of a round's tree.
pub(super) struct Tree {
    /// The znode that all others are below.
    pub(super) root: String,
    sequential: Vec<String>,
}

impl Tree {
    pub(super) fn new(root: String) -> Tree {
        Tree { root, sequential: Vec::new() }
    }

    /// A sequential znode was made.
    pub(super) fn remember(&mut self, path: &str) {
        self.sequential.push(path.to_string());
        if self.sequential.len() > REMEMBERED {
            self.sequential.remove(0);
        }
    }

    /// A znode is gone.
    pub(super) fn forget(&mut self, path: &str) {
        self.sequential.retain(|known| known != path);
    }

    fn below(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    /// A znode that may be there; never the round's root.
    pub(super) fn znode(&self, random: &mut Random) -> String {
        if !self.sequential.is_empty() && one_in(random, 6) {
            return pick(random, &self.sequential);
        }
        if one_in(random, 10) {
            return self.below(pick(random, &LOCKABLE));
        }
        // Near the top more often: what is below needs it.
        let reach = if one_in(random, 2) { 5 } else { PATHS.len() };
        self.below(pick(random, &PATHS[..reach]))
    }

    /// A path to change something at: now and then none.
    pub(super) fn path_to_change(&self, random: &mut Random) -> String {
        match random.below(60) {
            0 => self.below(pick(random, &BAD_BELOW)),
            1 => pick(random, &BAD_ABOVE).to_string(),
            2 => self.below("/é/ü"),
            3 => self.below("/é"),
            _ => self.znode(random),
        }
    }

    /// A path to look at.
    pub(super) fn path_to_read(&self, random: &mut Random) -> String {
        match random.below(40) {
            0 => pick(random, &SYSTEM).to_string(),
            1..5 => self.root.clone(),
            _ => self.path_to_change(random),
        }
    }

    /// Some paths to look at.
    pub(super) fn paths(&self, random: &mut Random) -> Vec<String> {
        (0..random.below(4)).map(|_| self.path_to_read(random)).collect()
    }

    /// What a sequential name begins with.
    pub(super) fn sequence(&self, random: &mut Random) -> String {
        if one_in(random, 12) {
            return self.path_to_change(random);
        }
        self.below(pick(random, &SEQUENCES))
    }

    /// An access list for the znode at `path`: mostly open, now and then refused.
    pub(super) fn acl(&self, random: &mut Random, path: &str) -> Vec<Acl> {
        let mut acl = match random.below(20) {
            0..13 => return vec![entry(ALL, "world", "anyone")],
            13 => bad_acl(random),
            14 => [bad_acl(random), vec![entry(ALL, "world", "anyone")]].concat(),
            _ => (0..1 + random.below(3)).map(|_| some_entry(random)).collect(),
        };
        let lockable = LOCKABLE.iter().any(|lockable| path == self.below(lockable));
        if !acl.is_empty() && !lockable {
            acl.push(entry(ALL, "digest", JANITOR_ID));
        }
        acl
    }
}

fn entry(perms: i32, scheme: &str, id: &str) -> Acl {
    Acl { perms, scheme: scheme.to_string(), id: id.to_string() }
}

fn some_entry(random: &mut Random) -> Acl {
    let perms = match random.below(8) {
        0..3 => ALL,
        3 => 0,
        _ => random.below(32) as i32,
    };
    match random.below(9) {
        0..3 => entry(perms, "world", "anyone"),
        3 | 4 => entry(perms, "digest", pick(random, &USERS).1),
        5 => entry(perms, "auth", ""),
        6 => entry(perms, "ip", "127.0.0.1"),
        7 => entry(perms, "ip", "127.0.0.0/8"),
        _ => entry(perms, "ip", "10.0.0.0/8"),
    }
}

/// One that is refused, or that one wonders about.
fn bad_acl(random: &mut Random) -> Vec<Acl> {
    const ODD: [(i32, &str, &str); 16] = [
        (ALL, "world", "nobody"),
        (ALL, "world", ""),
        (ALL, "digest", "u1"),
        (ALL, "digest", "u1:a:b"),
        (ALL, "digest", ""),
        (ALL, "digest", ":"),
        (ALL, "ip", "300.1.1.1"),
        (ALL, "ip", "127.0.0.1/33"),
        (ALL, "ip", "::1"),
        (ALL, "nonsense", "x"),
        (ALL, "", ""),
        (ALL, "auth", "u1:x"),
        (ALL, "super", "x"),
        (-1, "world", "anyone"),
        (99, "world", "anyone"),
        (ALL, "ip", "127.0.0.1/8"),
    ];
    if one_in(random, 4) {
        return Vec::new();
    }
    let (perms, scheme, id) = pick(random, &ODD);
    vec![entry(perms, scheme, id)]
}

/// Data out of little; null and none differ.
pub(super) fn data(random: &mut Random) -> Option<Data> {
    match random.below(12) {
        0 => None,
        1 => Some(Data(Vec::new())),
        2 => Some(Data(vec![0, 255, 10])),
        3 => Some(Data(vec![b'x'; random.below(3000) as usize])),
        _ => Some(Data(format!("v{}", random.below(20)).into_bytes())),
    }
}

/// The version a change expects: mostly any.
pub(super) fn version(random: &mut Random) -> i32 {
    const ODD: [i32; 5] = [-2, i32::MAX, i32::MIN, 7, 100];
    match random.below(20) {
        0..12 => -1,
        12..18 => random.below(3) as i32,
        _ => pick(random, &ODD),
    }
}
