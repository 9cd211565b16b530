//! Valid requests of every kind, changed: one field at a time by a list of bad values, or at random by a seed.
//!
//! Each is followed by a ping. It must be answered, or the connection must end; who is silent has been lost.

use std::time::{Duration, Instant};

use super::Server;
use super::support::zookeeper::{Client, Packet};

/// Numbers that a length, a count, a version, a mode or an opcode should not be.
const BAD_NUMBERS: [i32; 9] = [-1, -2, i32::MIN, i32::MAX, 0, 1, 0x00ff_ffff, 0x7fff_fff0, 0x0001_0000];
/// Mutations between two looks at what the witness sees.
const LOOK_EVERY: usize = 500;

/// One valid request of each kind, without its xid: opcode and record. closeSession is left to chance.
fn requests() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut add = |opcode: i32, record: &dyn Fn(&mut Packet)| {
        let mut packet = Packet::default();
        packet.int(opcode);
        record(&mut packet);
        all.push(packet.0);
    };
    for opcode in [1, 15, 19, 21] {
        add(opcode, &|packet| {
            packet.text("/m/n").buffer(Some(b"data")).int(1).int(31).text("world").text("anyone");
            packet.int(if opcode == 19 {
                4
            } else if opcode == 21 {
                5
            } else {
                3
            });
            if opcode == 21 {
                packet.long(10_000);
            }
        });
    }
    for opcode in [2, 13, 17, 18, 106] {
        add(opcode, &|packet| {
            packet.text("/m/n").int(1);
        });
    }
    for opcode in [3, 4, 8, 12] {
        add(opcode, &|packet| {
            packet.text("/m/n").byte(1);
        });
    }
    for opcode in [6, 9, 20, 103, 104, 107, 11, 500] {
        add(opcode, &|packet| {
            packet.text("/m");
        });
    }
    add(5, &|packet| {
        packet.text("/m/n").buffer(Some(b"data")).int(0);
    });
    add(7, &|packet| {
        packet.text("/m/n").int(1).int(31).text("digest").text("user:hash").int(0);
    });
    add(14, &|packet| {
        packet.int(1).byte(0).int(-1).text("/m/o").buffer(None).int(1).int(31).text("world").text("anyone").int(0);
        packet.int(13).byte(0).int(-1).text("/m").int(-1).int(2).byte(0).int(-1).text("/m/o").int(-1);
        packet.int(-1).byte(1).int(-1);
    });
    add(22, &|packet| {
        packet.int(4).byte(0).int(-1).text("/m").byte(0).int(8).byte(0).int(-1).text("/m").byte(0);
        packet.int(-1).byte(1).int(-1);
    });
    add(16, &|packet| {
        packet.text("server.9=127.0.0.1:1:2;3").text("1").text("").long(-1);
    });
    add(100, &|packet| {
        packet.int(0).text("digest").buffer(Some(b"user:password"));
    });
    add(102, &|packet| {
        packet.buffer(Some(b"token"));
    });
    add(101, &|packet| {
        packet.long(1).int(1).text("/m").int(1).text("/none").int(1).text("/m");
    });
    add(105, &|packet| {
        packet.long(1).int(1).text("/m").int(1).text("/none").int(1).text("/m").int(1).text("/m").int(1).text("/m");
    });
    all
}

/// The one who misbehaves. Who was closed comes again.
struct Attacker<'a> {
    server: &'a mut Server,
    client: Option<Client>,
    sent: usize,
}

impl Attacker<'_> {
    fn send(&mut self, body: &[u8]) {
        let mut client = self.client.take().unwrap_or_else(|| {
            let mut client = self.server.client();
            // Gone again if a mutation deleted it.
            let _ = client.create("/m", b"", 0);
            client
        });
        let (mut packet, mut ping) = (Packet::default(), Packet::default());
        packet.int(7);
        packet.0.extend_from_slice(body);
        ping.int(-2).int(11);
        let open = client.send(&packet).is_ok() && client.send(&ping).is_ok() && until_ping(&mut client, body);
        self.client = open.then_some(client);
        self.sent += 1;
        if self.sent.is_multiple_of(LOOK_EVERY) {
            self.server.check_unharmed(&format!("{} mutations, the last being {body:?}", self.sent));
        }
    }
}

/// Reads up to the answer to the ping; `false`: the connection ended.
fn until_ping(client: &mut Client, body: &[u8]) -> bool {
    loop {
        match client.receive() {
            Ok(answer) if answer[..4] == (-2i32).to_be_bytes() => return true,
            Ok(_) => {}
            Err(error) => {
                let silent = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
                assert!(!silent, "neither answered nor closed: {body:?}");
                return false;
            }
        }
    }
}

/// Every request cut off at every byte, and with every four bytes of it replaced by every bad number.
pub(super) fn systematic(server: &mut Server) {
    let mut attacker = Attacker { server, client: None, sent: 0 };
    for request in requests() {
        for end in 0..request.len() {
            attacker.send(&request[..end]);
        }
        for at in 4..=request.len().saturating_sub(4) {
            for number in BAD_NUMBERS {
                let mut changed = request.clone();
                changed[at..at + 4].copy_from_slice(&number.to_be_bytes());
                attacker.send(&changed);
            }
        }
    }
    assert!(attacker.sent > 5000, "only {} mutations", attacker.sent);
}

/// Bytes changed, removed, doubled and added at random, for so long.
pub(super) fn random(server: &mut Server, seed: u64, time: Duration) {
    let mut attacker = Attacker { server, client: None, sent: 0 };
    let (mut chance, requests, since) = (Chance(seed), requests(), Instant::now());
    while since.elapsed() < time {
        let mut body = requests[chance.below(requests.len())].clone();
        for _ in 0..=chance.below(4) {
            let at = chance.below(body.len().max(1)).min(body.len());
            match chance.below(6) {
                0 => body.truncate(at),
                1 => body.insert(at, chance.byte()),
                2 if at < body.len() => drop(body.remove(at)),
                3 => body.extend_from_within(at..),
                4 if at + 4 <= body.len() => {
                    let number = BAD_NUMBERS[chance.below(BAD_NUMBERS.len())];
                    body[at..at + 4].copy_from_slice(&number.to_be_bytes());
                }
                _ if at < body.len() => body[at] = chance.byte(),
                _ => {}
            }
        }
        attacker.send(&body);
    }
    assert!(attacker.sent > 200, "only {} mutations", attacker.sent);
}

/// Numbers from a seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
