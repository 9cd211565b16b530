//! What a reconfig asks for, and which change of members that is. Pure.
//!
//! Servers are told apart by their numbers, as in ZooKeeper; members that do not serve its clients have none and
//! are left alone. What is asked for is done whole or not at all, so what would take several steps is refused: one
//! reconfig either moves one server to another peer address, or adds, removes and changes the parts of any.
//!
//! Where a server that is running serves its clients is its own setting and cannot be changed from here.

use std::collections::BTreeMap;

use tidelock_model::limits::MEMBER_TEXT_BYTES_MAX;
use tidelock_model::{Member, MemberChange, MemberRole, NodeId, ZookeeperServer};

/// Most servers in one request; more than any ensemble has.
const SERVERS_MAX: usize = 64;

/// Why a request makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nonsense {
    /// ZooKeeper's "bad arguments".
    Arguments,
    /// A number that is none; ZooKeeper takes that for a packet it cannot read.
    Number,
}

/// A request, its lists not looked at yet.
pub(crate) struct Asked<'a> {
    pub(crate) joining: &'a str,
    pub(crate) leaving: &'a str,
    pub(crate) new_members: &'a str,
}

/// One server as a request describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    peer_address: String,
    election_port: u16,
    role: MemberRole,
    /// Empty if it is not told.
    client_address: String,
}

type Servers = BTreeMap<u64, Server>;

/// The change that makes `members` what was asked for; nothing if they are that already. `new_id` draws the id of
/// a new member.
pub(crate) fn change(
    asked: &Asked<'_>,
    members: &[Member],
    new_id: impl FnMut() -> NodeId,
) -> Result<Option<MemberChange>, Nonsense> {
    let now: BTreeMap<u64, &Member> =
        members.iter().filter_map(|member| Some((member.zookeeper.as_ref()?.number, member))).collect();
    let wanted = if asked.new_members.is_empty() {
        let (joining, leaving) = (joining(asked.joining)?, leaving(asked.leaving)?);
        let mut wanted: Servers = now.iter().map(|(number, member)| (*number, Server::of(member))).collect();
        wanted.retain(|number, _| !leaving.contains(number));
        wanted.extend(joining);
        wanted
    } else {
        all_members(asked.new_members)?
    };
    let votes = |server: &Server| server.role == MemberRole::Voter;
    let untold_voters = members.iter().any(|member| member.zookeeper.is_none() && member.role == MemberRole::Voter);
    if wanted.len() > SERVERS_MAX || !wanted.values().any(votes) && !untold_voters {
        return Err(Nonsense::Arguments);
    }
    difference(&now, &wanted, new_id)
}

fn difference(
    now: &BTreeMap<u64, &Member>,
    wanted: &Servers,
    mut new_id: impl FnMut() -> NodeId,
) -> Result<Option<MemberChange>, Nonsense> {
    let (mut add, mut moved) = (Vec::new(), Vec::new());
    let gone = now.iter().filter(|(number, _)| !wanted.contains_key(number));
    let mut remove: Vec<NodeId> = gone.map(|(_, member)| member.id).collect();
    for (number, server) in wanted {
        let Some(member) = now.get(number) else {
            add.push(server.to_member(new_id(), *number));
            continue;
        };
        let known = Server::of(member);
        let same_ports = server.election_port == known.election_port
            && (server.client_address.is_empty() || server.client_address == known.client_address);
        let same_place = server.peer_address == known.peer_address && same_ports;
        let never_started = member.name.is_empty() && member.client_urls.is_empty();
        if !same_place && never_started {
            remove.push(member.id);
            add.push(server.to_member(new_id(), *number));
        } else if !same_ports {
            return Err(Nonsense::Arguments);
        } else if !same_place {
            let peer_addresses = vec![server.peer_address.clone()];
            moved.push(MemberChange::Readdress { id: member.id, peer_addresses, role: member.role });
            if server.role != member.role {
                return Err(Nonsense::Arguments);
            }
        } else if server.role != member.role {
            add.push(Member { role: server.role, ..(*member).clone() });
        }
    }
    match (moved.pop(), add.is_empty() && remove.is_empty()) {
        (None, true) => Ok(None),
        (None, false) => Ok(Some(MemberChange::Replace { add, remove })),
        (Some(change), true) if moved.is_empty() => Ok(Some(change)),
        (Some(_), _) => Err(Nonsense::Arguments),
    }
}

/// Parts of a list, without spaces around them and without empty ones.
fn parts(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).map(str::trim).filter(|part| !part.is_empty())
}

fn leaving(text: &str) -> Result<Vec<u64>, Nonsense> {
    parts(text, ',').map(number).collect()
}

fn joining(text: &str) -> Result<Servers, Nonsense> {
    let mut servers = Servers::new();
    for line in parts(text, ',') {
        let (name, server) = line.split_once('=').ok_or(Nonsense::Arguments)?;
        // Whatever is before the dot, as with ZooKeeper.
        let number = number(name.rsplit('.').next().unwrap_or(name).trim())?;
        let server = Server::parse(server.trim()).ok_or(Nonsense::Arguments)?;
        if server.client_address.is_empty() {
            return Err(Nonsense::Arguments);
        }
        servers.insert(number, server);
    }
    Ok(servers)
}

/// The text of a whole configuration, with commas for ends of lines.
fn all_members(text: &str) -> Result<Servers, Nonsense> {
    let mut servers = Servers::new();
    for line in text.split([',', '\n']).map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once('=').ok_or(Nonsense::Arguments)?;
        match name.trim().strip_prefix("server.") {
            Some(text) => {
                let server = Server::parse(value.trim()).ok_or(Nonsense::Arguments)?;
                servers.insert(number(text.trim())?, server);
            }
            None if name.trim() == "version" => {}
            None => return Err(Nonsense::Arguments),
        }
    }
    Ok(servers)
}

/// Of a server. Zero is what no server has here; ZooKeeper's own limit is that of its signed numbers.
fn number(text: &str) -> Result<u64, Nonsense> {
    let number = text.parse::<i64>().map_err(|_| Nonsense::Number)?;
    u64::try_from(number).ok().filter(|number| *number != 0).ok_or(Nonsense::Arguments)
}

fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port != 0)
}

/// A host, in brackets if it has colons itself, and what is behind its colon.
fn host_and_rest(text: &str) -> Option<(&str, &str)> {
    let end = if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':')? };
    let (host, rest) = text.split_at(end);
    let is_host = |host: &&str| !host.is_empty() && host.len() <= 255 && !host.contains([' ', '/', '|']);
    Some((Some(host).filter(is_host)?, rest.strip_prefix(':')?))
}

impl Server {
    /// `host:peerPort:electionPort[:part][;[clientHost:]clientPort]`. Several addresses of one server are refused.
    fn parse(text: &str) -> Option<Server> {
        let (server, client) = text.split_once(';').unwrap_or((text, ""));
        let (host, rest) = host_and_rest(server.trim())?;
        let words: Vec<&str> = rest.split(':').collect();
        let (peer, election, part) = match words[..] {
            [peer, election] => (peer, election, "participant"),
            [peer, election, part] => (peer, election, part),
            _ => return None,
        };
        let (peer_port, election_port) = (port(peer)?, port(election)?);
        let role = match part.to_ascii_lowercase().as_str() {
            "participant" => MemberRole::Voter,
            "observer" => MemberRole::Learner,
            _ => return None,
        };
        let client_address = match (client.trim(), host_and_rest(client.trim())) {
            ("", _) => String::new(),
            (_, Some((host, text))) => format!("{host}:{}", port(text)?),
            (text, None) => format!("0.0.0.0:{}", port(text)?),
        };
        let fits = host.len() + client_address.len() <= MEMBER_TEXT_BYTES_MAX / 2;
        (peer_port != election_port && fits).then(|| Server {
            peer_address: format!("{host}:{peer_port}"),
            election_port,
            role,
            client_address,
        })
    }

    /// A member of today.
    fn of(member: &Member) -> Server {
        let server = member.zookeeper.as_ref();
        Server {
            peer_address: member.peer_addresses.first().cloned().unwrap_or_default(),
            election_port: server.map_or(0, |server| server.election_port),
            role: member.role,
            client_address: server.map_or_else(String::new, |server| server.client_address.clone()),
        }
    }

    fn to_member(&self, id: NodeId, number: u64) -> Member {
        let client_address = self.client_address.clone();
        Member {
            id,
            name: String::new(),
            peer_addresses: vec![self.peer_address.clone()],
            client_urls: Vec::new(),
            role: self.role,
            zookeeper: Some(ZookeeperServer { number, election_port: self.election_port, client_address }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(number: u64, role: MemberRole) -> Member {
        let server = Server::parse(&format!("h{number}:2888:3888;10.0.0.{number}:2181")).unwrap();
        let member = server.to_member(NodeId(number), number);
        Member { role, name: format!("server.{number}"), client_urls: vec!["zookeeper://h".into()], ..member }
    }

    fn three() -> Vec<Member> {
        (1..=3).map(|number| running(number, MemberRole::Voter)).collect()
    }

    fn asked(joining: &str, leaving: &str, new_members: &str) -> Result<Option<MemberChange>, Nonsense> {
        change(&Asked { joining, leaving, new_members }, &three(), || NodeId(99))
    }

    /// The lists come from scripts of operators; each must mean what it means to a real ZooKeeper.
    #[test]
    fn servers_join_leave_and_change_their_parts() {
        let line = "server.9=0.0.0.0:17001:17002:observer;0.0.0.0:17003";
        let Ok(Some(MemberChange::Replace { add, remove })) = asked(line, "3 , 77", "") else { panic!("no change") };
        assert_eq!(remove, [NodeId(3)]);
        let server = ZookeeperServer { number: 9, election_port: 17002, client_address: "0.0.0.0:17003".into() };
        assert_eq!((add[0].id, add[0].role, add[0].zookeeper.clone()), (NodeId(99), MemberRole::Learner, Some(server)));
        assert_eq!((add[0].peer_addresses.as_slice(), add.len()), (&["0.0.0.0:17001".to_owned()][..], 1));

        let demoted = asked("server.2=h2:2888:3888:Observer;10.0.0.2:2181", "", "");
        let member = running(2, MemberRole::Learner);
        assert_eq!(demoted, Ok(Some(MemberChange::Replace { add: vec![member], remove: vec![] })));

        let all = "server.1=h1:2888:3888,server.3=h3:2888:3888:participant;10.0.0.3:2181\nversion=12";
        let removed = MemberChange::Replace { add: vec![], remove: vec![NodeId(2)] };
        assert_eq!(asked("", "", all), Ok(Some(removed)));

        let moved = MemberChange::Readdress {
            id: NodeId(1),
            peer_addresses: vec!["[fe80::1]:2888".into()],
            role: MemberRole::Voter,
        };
        assert_eq!(asked("server.1=[fe80::1]:2888:3888;10.0.0.1:2181", "", ""), Ok(Some(moved)));
    }

    #[test]
    fn what_is_so_already_changes_nothing() {
        assert_eq!(asked("", "", ""), Ok(None));
        assert_eq!(asked("server.1=h1:2888:3888;10.0.0.1:2181", "77", ""), Ok(None));
    }

    /// A line that is half understood would add a server that nobody can ever start.
    #[test]
    fn what_makes_no_sense_is_refused() {
        use Nonsense::{Arguments, Number};
        for (joining, leaving, all, expected) in [
            ("some thing", "", "", Arguments),
            ("server.9=h:1:2", "", "", Arguments),
            ("server.9=h:1:1;3", "", "", Arguments),
            ("server.9=h:1;3", "", "", Arguments),
            ("server.9=h:1:2:boss;3", "", "", Arguments),
            ("server.9=h:1:2:observer:4;3", "", "", Arguments),
            ("server.9=h:1:70000;3", "", "", Arguments),
            ("server.9=h:1:2;x:y", "", "", Arguments),
            ("server.9=h:1:2|i:1:2;3", "", "", Arguments),
            ("server.-9=h:1:2;3", "", "", Arguments),
            ("server.0=h:1:2;3", "", "", Arguments),
            ("server.x=h:1:2;3", "", "", Number),
            ("", "abc", "", Number),
            ("", "", "foo", Arguments),
            ("", "", "tickTime=1", Arguments),
            ("", "", "server.x=h:1:2", Number),
            ("", "1,2,3", "", Arguments),
            ("", "", "server.1=h1:2888:3888:observer", Arguments),
            // Only the server itself can serve clients elsewhere, and one step must be enough.
            ("server.1=h1:2888:3888;10.0.0.1:9", "", "", Arguments),
            ("server.1=elsewhere:2888:3888;10.0.0.1:2181", "2", "", Arguments),
            ("server.1=elsewhere:2888:3888:observer;10.0.0.1:2181", "", "", Arguments),
        ] {
            assert_eq!(asked(joining, leaving, all), Err(expected), "{joining} {leaving} {all}");
        }
    }

    /// One that was added with a mistake must be correctable without knowing about ids.
    #[test]
    fn a_server_that_never_ran_is_added_anew_if_it_is_described_otherwise() {
        let mut members = three();
        members[2] = Member { name: String::new(), client_urls: vec![], ..members[2].clone() };
        let asked = Asked { joining: "server.3=h3:2888:3888:observer;0.0.0.0:9", leaving: "", new_members: "" };
        let Ok(Some(MemberChange::Replace { add, remove })) = change(&asked, &members, || NodeId(99)) else {
            panic!("no change")
        };
        assert_eq!((add[0].id, remove), (NodeId(99), vec![NodeId(3)]));
    }
}
