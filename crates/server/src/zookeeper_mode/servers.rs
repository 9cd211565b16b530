//! The lines `server.N`: who the founding members are and where they are reached.
//!
//! Refused: servers with several addresses, because members listen at one address each.

/// What a line must look like.
const SHAPE: &str = "write it as host:peerPort:electionPort, perhaps followed by :participant or :observer and by \
                     ;clientPort or ;clientAddress:clientPort";

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// The N of `server.N`.
    pub(crate) number: u64,
    /// IPv6 addresses are in brackets.
    pub(crate) host: String,
    pub(crate) peer_port: u16,
    /// Told to clients that ask for the members, and not opened: elections go through the peer port here.
    pub(crate) election_port: u16,
    /// Whether it does not vote.
    pub(crate) observes: bool,
    /// Where it serves clients, if the line says so.
    pub(crate) client: Option<ClientAddress>,
}

/// The part behind the semicolon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientAddress {
    /// `None`: every address of the machine.
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

/// What is wrong with a line, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) what: String,
    pub(crate) fix: &'static str,
}

fn wrong(what: impl Into<String>, fix: &'static str) -> Wrong {
    Wrong { what: what.into(), fix }
}

impl Server {
    /// Reads what follows `server.` and the `=` after it.
    pub(crate) fn parse(number: &str, text: &str) -> Result<Server, Wrong> {
        let number = number
            .parse()
            .map_err(|_| wrong(format!("{number:?} is not a number"), "write it as server.1, server.2 and so on"))?;
        if text.contains('|') {
            let fix = "give the one address that all other members reach it at";
            return Err(wrong("several addresses of one server are not supported", fix));
        }
        let (quorum, client) = match text.split_once(';') {
            Some((quorum, client)) => (quorum, Some(client)),
            None => (text, None),
        };
        let (host, ports) = split_host(quorum.trim()).ok_or_else(|| wrong("has no host", SHAPE))?;
        let mut words = ports.split(':').map(str::trim);
        let peer_port = port(words.next())?;
        // A line without it is of no ZooKeeper.
        let election_port = port(words.next())?;
        let observes = match words.next().map(str::to_ascii_lowercase).as_deref() {
            None | Some("participant") => false,
            Some("observer") => true,
            Some(other) => return Err(wrong(format!("unrecognised peer type {other:?}"), SHAPE)),
        };
        if words.next().is_some() {
            return Err(wrong("has more parts than a server can have", SHAPE));
        }
        let client = client.map(str::trim).filter(|text| !text.is_empty()).map(ClientAddress::parse).transpose()?;
        Ok(Server { number, host: host.to_owned(), peer_port, election_port, observes, client })
    }

    /// Its name among the members.
    pub(crate) fn name(&self) -> String {
        format!("server.{}", self.number)
    }

    /// Where other members reach it.
    pub(crate) fn peer_address(&self) -> String {
        format!("{}:{}", self.host, self.peer_port)
    }
}

impl ClientAddress {
    fn parse(text: &str) -> Result<ClientAddress, Wrong> {
        match split_host(text) {
            Some((host, rest)) => Ok(ClientAddress { host: Some(host.to_owned()), port: port(Some(rest))? }),
            None => Ok(ClientAddress { host: None, port: port(Some(text))? }),
        }
    }
}

/// The host, in brackets if it is given so, and what follows its colon.
fn split_host(text: &str) -> Option<(&str, &str)> {
    let end = if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':')? };
    let (host, rest) = text.split_at(end);
    Some((host, rest.strip_prefix(':')?)).filter(|(host, _)| !host.is_empty())
}

fn port(text: Option<&str>) -> Result<u16, Wrong> {
    let text = text.ok_or_else(|| wrong("has fewer than two ports", SHAPE))?;
    let port = text.parse::<u16>().ok().filter(|port| *port != 0);
    port.ok_or_else(|| wrong(format!("{text:?} is not a port"), SHAPE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every ensemble is described by such lines; one that is misread founds a cluster of the wrong members.
    #[test]
    fn a_server_is_read_in_all_of_zookeepers_forms() {
        let (host, observes) = ("zk3".to_owned(), false);
        let plain = Server { number: 3, host, peer_port: 2888, election_port: 3888, observes, client: None };
        let observer = Server { observes: true, ..plain.clone() };
        assert_eq!(Server::parse("3", "zk3:2888:3888:Observer"), Ok(observer));
        for text in ["zk3:2888:3888", "zk3:2888:3888:participant", "zk3:2888:3888:PARTICIPANT", "zk3:2888:3888;"] {
            assert_eq!(Server::parse("3", text), Ok(plain.clone()), "{text}");
        }
        let client = |host: Option<&str>| Some(ClientAddress { host: host.map(Into::into), port: 2181 });
        assert_eq!(Server::parse("3", "zk3:2888:3888;2181").unwrap().client, client(None));
        assert_eq!(
            Server::parse("3", "zk3:2888:3888:participant;10.0.0.3:2181").unwrap().client,
            client(Some("10.0.0.3"))
        );
        let six = Server::parse("1", "[fe80::1]:2888:3888;[::1]:2181").unwrap();
        assert_eq!((six.peer_address().as_str(), six.client), ("[fe80::1]:2888", client(Some("[::1]"))));
    }

    /// What cannot be honoured must be said, not guessed at.
    #[test]
    fn a_line_that_is_no_server_is_refused_with_what_is_wrong() {
        for (number, text, expected) in [
            ("x", "h:1:2", "\"x\" is not a number"),
            ("1", "h", "has no host"),
            ("1", ":1:2", "has no host"),
            ("1", "h:1", "fewer than two ports"),
            ("1", "h:1:zwei", "\"zwei\" is not a port"),
            ("1", "h:70000:2", "\"70000\" is not a port"),
            ("1", "h:0:2", "\"0\" is not a port"),
            ("1", "h:1:2:boss", "unrecognised peer type \"boss\""),
            ("1", "h:1:2:participant:3", "more parts"),
            ("1", "h:1:2;x:y", "\"y\" is not a port"),
            ("1", "h:1:2|i:1:2", "several addresses"),
        ] {
            let wrong = Server::parse(number, text).unwrap_err();
            assert!(wrong.what.contains(expected), "{text}: {wrong:?}");
        }
    }
}
