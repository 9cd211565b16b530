//! Quotas in the random programs: one path of a round may have one, whose limits are set and changed while others
//! work below it, and whose figures are read.
//!
//! Limits and figures come and go together, figures last and first, as ZooKeeper's own command line does it. A real
//! ZooKeeper that has one of the two without the other, or one quota below another, shows figures that are wrong.

use super::call::{Acl, Call, Data, How};
use super::generator::open_create;
use super::tree::{ALL, one_in, pick};
use crate::random::Random;

const ABOVE: &str = "/zookeeper/quota";

/// The quota of a round.
pub(super) struct Quota {
    /// Of which path.
    path: String,
    /// What is above it in the tree of quotas.
    above: Vec<String>,
}

impl Quota {
    /// Of some path of the round below `root`, in some rounds.
    pub(super) fn draw(random: &mut Random, root: &str) -> Option<Quota> {
        if !one_in(random, 3) {
            return None;
        }
        let below = pick(random, &["", "", "/a"]);
        let names = root.split('/').chain(below.split('/')).filter(|name| !name.is_empty());
        let mut above: Vec<String> = names.fold(vec![ABOVE.to_string()], |mut above, name| {
            above.push(format!("{}/{name}", above.last().map_or("", String::as_str)));
            above
        });
        above.remove(0);
        Some(Quota { path: format!("{ABOVE}{root}{below}"), above })
    }

    /// Something about it.
    pub(super) fn call(&self, random: &mut Random) -> Call {
        let watch = one_in(random, 4);
        let path = if one_in(random, 4) { self.limits() } else { self.stats() };
        match random.below(16) {
            0..3 => self.set(random),
            3 => Call::Multi(vec![
                Call::Delete { path: self.stats(), version: -1 },
                Call::Delete { path: self.limits(), version: -1 },
            ]),
            4..7 => Call::SetData { path: self.limits(), data: Some(limits(random)), version: -1 },
            7 => Call::Exists { path, watch },
            8 => Call::GetChildren2 { path: self.path.clone(), watch },
            _ => Call::GetData { path, watch },
        }
    }

    /// What makes it, at the beginning of a round.
    pub(super) fn prepare(&self, random: &mut Random) -> Vec<Call> {
        self.above.iter().map(|path| open_create(path)).chain([self.set(random)]).collect()
    }

    fn set(&self, random: &mut Random) -> Call {
        let create = |path: String, data: Data| {
            let acl = vec![Acl { perms: ALL, scheme: "world".to_string(), id: "anyone".to_string() }];
            Call::Create { how: How::Plain, path, data: Some(data), acl, flags: 0 }
        };
        let none = Data(b"count=0,bytes=0".to_vec());
        Call::Multi(vec![create(self.limits(), limits(random)), create(self.stats(), none)])
    }

    fn limits(&self) -> String {
        format!("{}/zookeeper_limits", self.path)
    }

    fn stats(&self) -> String {
        format!("{}/zookeeper_stats", self.path)
    }
}

/// The top of what a round has in the tree of quotas.
pub(super) fn top(root: &str) -> String {
    format!("{ABOVE}{root}")
}

/// Limits that a round's tree comes near to.
fn limits(random: &mut Random) -> Data {
    let mut text = format!("count={},bytes={}", pick(random, &[-1, -1, 3, 8]), pick(random, &[-1, -1, 20, 900]));
    if !one_in(random, 4) {
        text.push('=');
        if one_in(random, 2) {
            text.push_str(&format!(";byteHardLimit={}", pick(random, &[-1, 0, 30, 100, 2000])));
        }
        text.push_str(&format!(";countHardLimit={}", pick(random, &[-1, 2, 4, 6, 9])));
    }
    Data(text.into_bytes())
}
