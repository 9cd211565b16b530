//! Four-letter words: what operators, scripts and exporters ask on the client port, in ZooKeeper's text.
//!
//! The figures are those of `report` and `listings`; here is only how they are said. Layout, order and spelling are
//! ZooKeeper 3.9's, because scripts cut them with `awk`. What is left out at a limit is told in a last line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use tidelock_model::SessionFound;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::Face;
use crate::figures::Client;
use crate::listings::{Listed, by_path};
use crate::machine::{environment, java_date};
use crate::report::{Figure, Mode, NOT_SERVING, Report, VERSION};
use crate::wire::FourLetterWord;

/// The last line of a list that is not whole.
const CUT: &str = "(the list is longer; the rest is left out)\n";
/// How long a connection without a session is kept, in milliseconds.
const SESSIONLESS_MS: u64 = 10_000;

impl Face {
    /// The bytes that belong to a word: `stmk` has a number with it. Nothing: they did not come.
    pub(crate) async fn word_argument(
        &self,
        word: FourLetterWord,
        reading: &mut (impl AsyncRead + Unpin),
    ) -> Option<i64> {
        if word != FourLetterWord::Stmk || !self.allows(word) {
            return Some(0);
        }
        reading.read_i64().await.ok()
    }

    fn allows(&self, word: FourLetterWord) -> bool {
        self.config.words.as_ref().is_none_or(|allowed| allowed.iter().any(|allowed| allowed == word.as_str()))
    }

    /// The answer to a word.
    pub(crate) async fn answer_word(&self, word: FourLetterWord, argument: i64) -> String {
        if !self.allows(word) {
            return format!("{} is not executed because it is not in the whitelist.\n", word.as_str());
        }
        match word {
            FourLetterWord::Ruok => "imok".to_owned(),
            FourLetterWord::Isro => if self.read_only.is_on() { "ro" } else { "rw" }.to_owned(),
            FourLetterWord::Srvr | FourLetterWord::Stat | FourLetterWord::Mntr if !self.is_serving() => {
                format!("{NOT_SERVING}\n")
            }
            FourLetterWord::Srvr => server_text(&self.report().await, None),
            FourLetterWord::Stat => server_text(&self.report().await, Some(&self.connections())),
            FourLetterWord::Mntr => monitor_text(&self.monitor().await),
            FourLetterWord::Conf => self.configuration_text().await,
            FourLetterWord::Cons => connections_text(&self.connections()),
            FourLetterWord::Dump => self.dump_text().await,
            FourLetterWord::Envi => environment_text().await,
            FourLetterWord::Dirs => {
                let bytes = self.coordinator.status().disk_bytes;
                format!("datadir_size: {bytes}\nlogdir_size: {bytes}\n")
            }
            FourLetterWord::Wchs => {
                let ((paths, watches), watching) = self.watches.with(|table, _| (table.totals(), table.watching()));
                format!("{watching} connections watching {paths} paths\nTotal watches:{watches}\n")
            }
            FourLetterWord::Wchc => self.watches_text().await,
            FourLetterWord::Wchp => self.watches_by_path_text().await,
            FourLetterWord::Crst => {
                self.reset_connections();
                "Connection stats reset.\n".to_owned()
            }
            FourLetterWord::Srst => {
                self.counts.reset();
                "Server stats reset.\n".to_owned()
            }
            FourLetterWord::Hash => {
                let (index, digest) = self.digest();
                format!("{index:x}: {digest}\n")
            }
            FourLetterWord::Gtmk => self.counts.trace_mask.load(Relaxed).to_string(),
            FourLetterWord::Stmk => {
                self.counts.trace_mask.store(argument, Relaxed);
                argument.to_string()
            }
        }
    }

    /// The state's fingerprint here and now, shortened to a number that Java has, and what it belongs to: the index in
    /// the log, since what the log says may change the state without a new zxid.
    pub(crate) fn digest(&self) -> (u64, u64) {
        let status = self.coordinator.status();
        (status.applied.0, status.digest as u64 >> 1)
    }

    async fn configuration_text(&self) -> String {
        let (config, about) = (&self.config, &self.config.about);
        let bytes = self.coordinator.status().disk_bytes;
        let mut text = String::new();
        let number = |port: Option<u16>| port.map_or(-1, i32::from);
        let (port, secure) = (number(about.client_port), number(about.secure_client_port));
        let _ = writeln!(text, "clientPort={port}\nsecureClientPort={secure}");
        for (name, size) in [("dataDir", "dataDirSize"), ("dataLogDir", "dataLogSize")] {
            let _ = writeln!(text, "{name}={}\n{size}={bytes}", about.data_dir);
        }
        let _ = writeln!(text, "tickTime={}", config.tick.as_millis());
        let _ = writeln!(text, "maxClientCnxns={}", config.connections_per_address);
        let _ = writeln!(text, "minSessionTimeout={}", config.session_timeout_min.as_millis());
        let _ = writeln!(text, "maxSessionTimeout={}", config.session_timeout_max.as_millis());
        let _ = writeln!(text, "clientPortListenBacklog=-1\nserverId={}", config.server_number);
        if self.mode() != Mode::Standalone {
            let servers = self.servers().await;
            if let Some(own) = servers.iter().find(|server| server.node == self.coordinator.status().node) {
                let port = own.peer_address.rsplit_once(':').map_or("", |(_, port)| port);
                let _ = writeln!(text, "quorumPort={port}\npeerType={}", i32::from(!own.votes));
            }
            text.push_str("membership: \n");
            servers.iter().for_each(|server| text.extend([&server.line(), "\n"]));
        }
        text
    }

    async fn dump_text(&self) -> String {
        let sessions = self.all_sessions().await;
        let mut text = "SessionTracker dump:\n".to_owned();
        match self.session_ends(&sessions.items).await {
            Some(ends) => {
                let count: usize = ends.values().map(Vec::len).sum();
                let _ = writeln!(text, "Session Sets ({})/({count}):", ends.len());
                for (end, sessions) in ends {
                    let _ = writeln!(text, "{} expire at {}:", sessions.len(), java_date(end));
                    session_lines(&mut text, &sessions);
                }
            }
            None => {
                let _ = writeln!(text, "Global Sessions({}):", sessions.items.len());
                for SessionFound { session, timeout_ms, .. } in &sessions.items {
                    let _ = writeln!(text, "0x{:x}\t{timeout_ms}ms", session.0);
                }
            }
        }
        let owners: Vec<&SessionFound> =
            sessions.items.iter().filter(|session| !session.ephemerals.is_empty()).collect();
        let _ = writeln!(text, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", owners.len());
        for owner in owners {
            let _ = writeln!(text, "0x{:x}:", owner.session.0);
            owner.ephemerals.iter().for_each(|path| text.extend(["\t", path.as_str(), "\n"]));
        }
        if sessions.is_cut {
            text.push_str(CUT);
        }
        self.connections_dump(&mut text);
        text
    }

    /// Connections by when they would be closed if nothing were heard of them.
    fn connections_dump(&self, text: &mut String) {
        let connections = self.connections();
        let mut sets: BTreeMap<u64, Vec<&Client>> = BTreeMap::new();
        for client in &connections.items {
            let lives_ms = if client.session.is_some() { u64::from(client.timeout_ms) } else { SESSIONLESS_MS };
            sets.entry(self.next_tick(client.heard_ms + lives_ms)).or_default().push(client);
        }
        let count = connections.items.len();
        let _ = writeln!(text, "Connections dump:\nConnections Sets ({})/({count}):", sets.len());
        for (end, clients) in sets {
            let _ = writeln!(text, "{} expire at {}:", clients.len(), java_date(end));
            for client in clients {
                let session = client.session.unwrap_or(0);
                let _ = writeln!(text, "\tip: /{} sessionId: 0x{session:x}", client.address);
            }
        }
        if connections.is_cut {
            text.push_str(CUT);
        }
    }

    async fn watches_text(&self) -> String {
        let watches = self.all_watches().await;
        let mut text = String::new();
        for (session, paths) in &watches.items {
            let _ = writeln!(text, "0x{session:x}");
            paths.iter().for_each(|path| text.extend(["\t", path, "\n"]));
        }
        ended(text, watches.is_cut)
    }

    async fn watches_by_path_text(&self) -> String {
        let watches = self.all_watches().await;
        let mut text = String::new();
        for (path, sessions) in by_path(&watches.items) {
            text.extend([path, "\n"]);
            session_lines(&mut text, &sessions);
        }
        ended(text, watches.is_cut)
    }
}

fn session_lines(text: &mut String, sessions: &[i64]) {
    for session in sessions {
        // Writing to a String cannot fail, here and everywhere else.
        let _ = writeln!(text, "\t0x{session:x}");
    }
}

/// Lists end with an empty line.
fn ended(mut text: String, is_cut: bool) -> String {
    if is_cut {
        text.push_str(CUT);
    }
    text.push('\n');
    text
}

async fn environment_text() -> String {
    let all = tokio::task::spawn_blocking(|| environment(VERSION)).await.unwrap_or_default();
    let mut text = "Environment:\n".to_owned();
    all.iter().for_each(|(name, value)| text.extend([name, "=", value.as_str(), "\n"]));
    text
}

/// With the connections it is `stat`, without them `srvr`.
fn server_text(report: &Report, connections: Option<&Listed<Vec<Client>>>) -> String {
    let mut text = format!("Zookeeper version: {VERSION}\n");
    if let Some(connections) = connections {
        text.push_str("Clients:\n");
        connections.items.iter().for_each(|client| connection_line(&mut text, client, false));
        if connections.is_cut {
            text.push_str(CUT);
        }
        text.push('\n');
    }
    let latency = report.latency;
    // Java writes a whole number with one place, and so does `{:?}`.
    let _ = writeln!(text, "Latency min/avg/max: {}/{:?}/{}", latency.min, latency.average, latency.max);
    let _ = writeln!(text, "Received: {}\nSent: {}", report.received, report.sent);
    let _ = writeln!(text, "Connections: {}\nOutstanding: {}", report.connections, report.waiting);
    let _ = writeln!(text, "Zxid: 0x{:x}\nMode: {}", report.zxid(), report.mode.as_str());
    let _ = writeln!(text, "Node count: {}", report.totals.znodes);
    if report.mode == Mode::Leader {
        // Sizes of entries are not measured; this is how ZooKeeper says so.
        text.push_str("Proposal sizes last/min/max: -1/-1/-1\n");
    }
    text
}

fn monitor_text(figures: &[(&'static str, Figure)]) -> String {
    let mut text = String::new();
    for (name, figure) in figures {
        let _ = match figure {
            Figure::Text(value) => writeln!(text, "zk_{name}\t{value}"),
            Figure::Whole(value) => writeln!(text, "zk_{name}\t{value}"),
            Figure::Fraction(value) => writeln!(text, "zk_{name}\t{value:?}"),
        };
    }
    text
}

fn connections_text(connections: &Listed<Vec<Client>>) -> String {
    let mut text = String::new();
    connections.items.iter().for_each(|client| connection_line(&mut text, client, true));
    ended(text, connections.is_cut)
}

fn connection_line(text: &mut String, client: &Client, with_details: bool) {
    // What ZooKeeper's selector waits for: nothing any more, once a word was read.
    let interest = i32::from(client.session.is_some());
    let Client { address, waiting, received, sent, .. } = client;
    let _ = write!(text, " /{address}[{interest}](queued={waiting},recved={received},sent={sent}");
    if let (true, Some(session)) = (with_details, client.session) {
        let Client { operation, opened_ms, timeout_ms, .. } = client;
        let _ = write!(text, ",sid=0x{session:x},lop={operation},est={opened_ms},to={timeout_ms}");
        if let Some(xid) = client.xid {
            let _ = write!(text, ",lcxid=0x{xid:x}");
        }
        let (latency, average) = (client.latency, client.latency.average as u64);
        let _ = write!(text, ",lzxid=0x{:x},lresp={},llat={}", client.zxid, client.answered_ms, client.latency_ms);
        let _ = write!(text, ",minlat={},avglat={average},maxlat={}", latency.min, latency.max);
    }
    text.push_str(")\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Latency;

    fn client(session: Option<i64>) -> Client {
        Client {
            address: "127.0.0.1:44702".parse().unwrap(),
            session,
            timeout_ms: 30_000,
            opened_ms: 1_794_777_390_899,
            heard_ms: 1_794_777_390_999,
            received: 5,
            sent: 5,
            waiting: 0,
            operation: "PING",
            xid: Some(3),
            zxid: 6,
            answered_ms: 47_356_330,
            latency_ms: 0,
            latency: Latency { min: 0, average: 2.75, max: 10 },
        }
    }

    /// The lines of a real ZooKeeper 3.9.4, letter by letter: scripts cut them apart by these commas.
    #[test]
    fn connections_are_listed_as_zookeeper_lists_them() {
        let listed = |items, is_cut| Listed { items, is_cut };
        assert_eq!(
            connections_text(&listed(vec![client(Some(0x0100_02d1_f4b2_0001)), client(None)], false)),
            " /127.0.0.1:44702[1](queued=0,recved=5,sent=5,sid=0x10002d1f4b20001,lop=PING,est=1794777390899,to=30000,\
             lcxid=0x3,lzxid=0x6,lresp=47356330,llat=0,minlat=0,avglat=2,maxlat=10)\n \
             /127.0.0.1:44702[0](queued=0,recved=5,sent=5)\n\n"
        );
        let silent = Client { xid: None, zxid: -1, operation: "NA", ..client(Some(1)) };
        let text = connections_text(&listed(vec![silent], true));
        assert!(text.contains("to=30000,lzxid=0xffffffffffffffff,lresp="), "{text}");
        assert!(text.ends_with("the rest is left out)\n\n"), "{text}");
    }

    /// Exporters take what is behind the tab for a number, and Java writes 3.0 where Rust would write 3.
    #[test]
    fn figures_are_written_as_java_writes_them() {
        let figures = [
            ("version", Figure::Text("3.9.4".to_owned())),
            ("avg_latency", Figure::Fraction(0.0)),
            ("max_latency", Figure::Whole(3)),
        ];
        assert_eq!(monitor_text(&figures), "zk_version\t3.9.4\nzk_avg_latency\t0.0\nzk_max_latency\t3\n");
    }
}
