//! Chooses what to do next. The same seed and round give the same choices, as long as the answers are the same.

use super::call::{Acl, Call, How, Seen, opcode};
use super::packets::Packet;
use super::quotas::Quota;
use super::tree::{ALL, Tree, USERS, data, one_in, pick, version};
use crate::random::Random;

/// A time to live that outlasts every run.
const LONG_TTL_MS: i64 = 86_400_000;
/// Xids that clients do not use.
const ODD_XIDS: [i32; 5] = [0, -5, i32::MAX, i32::MIN, -3];

/// Something to do in a slot.
#[derive(Debug)]
pub(super) enum Step {
    Ask(Call),
    /// Lose the connection without a word.
    Drop,
    /// Come back, or come a second time.
    Attach(Seen),
    /// The same with a password that is not the session's.
    AttachWithWrongPassword,
}

/// Makes the steps of one round.
pub(super) struct Generator {
    pub(super) random: Random,
    pub(super) tree: Tree,
    pub(super) quota: Option<Quota>,
}

impl Generator {
    pub(super) fn new(seed: u64, round: u64, root: String) -> Generator {
        let mut random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let quota = Quota::draw(&mut random, &root);
        Generator { random, tree: Tree::new(root), quota }
    }

    /// The next step.
    pub(super) fn next(&mut self) -> Step {
        match self.random.below(200) {
            0 | 1 => Step::Drop,
            2 | 3 => Step::Attach(Seen::AllItWasTold),
            4 => Step::Attach(self.seen()),
            5 if one_in(&mut self.random, 3) => Step::AttachWithWrongPassword,
            5 | 6 => Step::Ask(Call::CloseSession),
            step => match &self.quota {
                Some(quota) if step < 27 => Step::Ask(quota.call(&mut self.random)),
                _ => Step::Ask(self.call()),
            },
        }
    }

    /// An xid in place of the next one, now and then.
    pub(super) fn xid(&mut self, next: i32) -> i32 {
        if one_in(&mut self.random, 80) { pick(&mut self.random, &ODD_XIDS) } else { next }
    }

    /// How long a session is to live: always longer than a round.
    pub(super) fn timeout(&mut self) -> i32 {
        pick(&mut self.random, &[30_000, 40_000, 40_001, 1_000_000, i32::MAX, 25_000])
    }

    fn seen(&mut self) -> Seen {
        match self.random.below(8) {
            0 => Seen::Nothing,
            1 => Seen::Future,
            2 | 3 => Seen::AllItWasTold,
            _ => Seen::Before(self.random.below(12) as usize),
        }
    }

    fn call(&mut self) -> Call {
        let (tree, random) = (&self.tree, &mut self.random);
        let watch = one_in(random, 2);
        match random.below(100) {
            0..24 => self.create(),
            24..35 => self.delete(),
            35..44 => self.set_data(),
            44..50 => Call::Exists { path: tree.path_to_read(random), watch },
            50..57 => Call::GetData { path: tree.path_to_read(random), watch },
            57..61 => Call::GetChildren { path: tree.path_to_read(random), watch },
            61..66 => Call::GetChildren2 { path: tree.path_to_read(random), watch },
            66..69 => Call::GetAcl { path: tree.path_to_read(random) },
            69..72 => self.set_acl(),
            72..81 => self.multi(),
            81..84 => self.multi_read(),
            84..89 => self.about_watches(),
            89..92 => self.auth(),
            92 => self.raw(),
            // ZooKeeper deletes whatever a client names so, without a look at rights: only what is not there is named.
            93 if one_in(random, 4) => Call::DeleteContainer { path: format!("{}/none", tree.root) },
            _ => self.other(),
        }
    }

    fn other(&mut self) -> Call {
        let (tree, random) = (&self.tree, &mut self.random);
        match random.below(8) {
            0 => Call::Sync { path: tree.path_to_read(random) },
            1 => Call::Ping,
            2 => Call::WhoAmI,
            3 => Call::Check { path: tree.path_to_read(random), version: version(random) },
            4 | 5 => Call::AllChildren { path: tree.path_to_read(random) },
            6 => Call::GetEphemerals { prefix: tree.root.clone() },
            _ => Call::GetEphemerals { prefix: tree.path_to_read(random) },
        }
    }

    fn create(&mut self) -> Call {
        let (tree, random) = (&self.tree, &mut self.random);
        let flags = match random.below(40) {
            0..14 => 0,
            14..21 => 1,
            21..26 => 2,
            26..30 => 3,
            30..34 => 4,
            34..36 => 5,
            36..38 => 6,
            38 if one_in(random, 2) => pick(random, &[-1, 7, 8, i32::MAX]),
            _ => 0,
        };
        // Operations and flags that do not go together are tried, too, but seldom: they can part the two trees. Not
        // tried: a container with the flags of an ephemeral, which ZooKeeper takes for one in the rest of its multi.
        let how = match (flags, random.below(60)) {
            (_, 0) => How::Ttl(LONG_TTL_MS),
            (0 | 2 | 4..=6, 1) => How::Container,
            (_, 2) => How::Plain,
            (4, _) => How::Container,
            (5 | 6, 3..9) => How::Ttl(pick(random, &[0, -1, i64::MAX, 1 << 40, (1 << 40) - 1, i64::MIN])),
            (5 | 6, _) => How::Ttl(LONG_TTL_MS + random.below(1000) as i64),
            (_, 3..30) => How::WithStat,
            _ => How::Plain,
        };
        let path = if matches!(flags, 2 | 3 | 6) { tree.sequence(random) } else { tree.path_to_change(random) };
        let acl = tree.acl(random, &path);
        Call::Create { how, data: data(random), acl, flags, path }
    }

    fn delete(&mut self) -> Call {
        Call::Delete { path: self.tree.path_to_change(&mut self.random), version: version(&mut self.random) }
    }

    fn set_data(&mut self) -> Call {
        let (tree, random) = (&self.tree, &mut self.random);
        // The znodes that are there from the start are left as they are, round after round.
        let path = if one_in(random, 8) { tree.root.clone() } else { tree.znode(random) };
        Call::SetData { path, data: data(random), version: version(random) }
    }

    fn set_acl(&mut self) -> Call {
        let (tree, random) = (&self.tree, &mut self.random);
        let path = tree.znode(random);
        Call::SetAcl { acl: tree.acl(random, &path), version: version(random), path }
    }

    fn multi(&mut self) -> Call {
        let count = self.random.below(6);
        let calls = (0..count).map(|_| match self.random.below(10) {
            0..4 => self.create(),
            4..6 => self.delete(),
            6..8 => self.set_data(),
            _ => {
                let (tree, random) = (&self.tree, &mut self.random);
                let (path, version) = (tree.path_to_read(random), version(random));
                // Its version differs (see `explained`), and a multi that only one carries out parts the trees.
                let version = if path == "/zookeeper/config" { -1 } else { version };
                Call::Check { path, version }
            }
        });
        Call::Multi(calls.collect())
    }

    fn multi_read(&mut self) -> Call {
        let (tree, random) = (&self.tree, &mut self.random);
        let calls = (0..random.below(5)).map(|_| {
            let (path, watch) = (tree.path_to_read(random), one_in(random, 4));
            if one_in(random, 2) { Call::GetData { path, watch } } else { Call::GetChildren { path, watch } }
        });
        Call::MultiRead(calls.collect())
    }

    fn about_watches(&mut self) -> Call {
        let seen = self.seen();
        let (tree, random) = (&self.tree, &mut self.random);
        let path = tree.path_to_read(random);
        let kind = if one_in(random, 15) { pick(random, &[0, 6, -1]) } else { 1 + random.below(5) as i32 };
        match random.below(10) {
            0 => Call::CheckWatches { path, kind },
            1 | 2 => Call::RemoveWatches { path, kind },
            3..7 => {
                let mode = if one_in(random, 15) { 2 } else { random.below(2) as i32 };
                Call::AddWatch { path, mode }
            }
            7 | 8 => Call::SetWatches {
                seen,
                data: tree.paths(random),
                exist: tree.paths(random),
                child: tree.paths(random),
            },
            _ => Call::SetWatches2 { seen, lists: std::array::from_fn(|_| tree.paths(random)) },
        }
    }

    fn auth(&mut self) -> Call {
        const ODD: [(&str, &str); 6] =
            [("nonsense", "x"), ("digest", "nocolon"), ("ip", "10.1.1.1"), ("world", "anyone"), ("", ""), ("auth", "")];
        let random = &mut self.random;
        let (scheme, auth) = if one_in(random, 6) { pick(random, &ODD) } else { ("digest", pick(random, &USERS).0) };
        Call::Auth { scheme: scheme.to_string(), auth: auth.to_string() }
    }

    /// Operations that do not exist, null paths, and records that end too early.
    fn raw(&mut self) -> Call {
        match self.random.below(4) {
            0 => {
                let number = pick(&mut self.random, &[500, 0, 10, 23, 99, 108, -7, i32::MAX]);
                Call::Raw { opcode: number, body: Vec::new() }
            }
            1 => {
                let mut body = Packet::default();
                body.int(-1).flag(false).int(-1);
                let number = pick(
                    &mut self.random,
                    &[
                        opcode::EXISTS,
                        opcode::GET_DATA,
                        opcode::GET_CHILDREN,
                        opcode::GET_CHILDREN2,
                        opcode::GET_ACL,
                        opcode::DELETE,
                        opcode::SYNC,
                        opcode::GET_EPHEMERALS,
                        opcode::ALL_CHILDREN,
                    ],
                );
                Call::Raw { opcode: number, body: body.0 }
            }
            _ => {
                let whole = if one_in(&mut self.random, 2) { self.create() } else { self.set_data() };
                let mut body = whole.body(|_| 0);
                let length = self.random.below(body.len() as u64 + 1) as usize;
                body.truncate(length);
                Call::Raw { opcode: whole.opcode(), body }
            }
        }
    }
}

/// A create that everybody may do everything with.
pub(super) fn open_create(path: &str) -> Call {
    let acl = vec![Acl { perms: ALL, scheme: "world".to_string(), id: "anyone".to_string() }];
    Call::Create { how: How::WithStat, path: path.to_string(), data: None, acl, flags: 0 }
}
