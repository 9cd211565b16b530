//! What operators of ZooKeeper ask: four-letter words and admin commands, at real nodes. The shapes that are compared
//! with are those of a real ZooKeeper 3.9.4, with numbers masked; `conformance/zookeeper/cli` compares with a live one.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

#[path = "support/as_etcd.rs"]
mod as_etcd;
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use as_etcd::Member;
use serde_json::Value;
use support::zookeeper::{Client, EPHEMERAL};
use support::{free_ports, http, tidelock, wait_for};

/// What a server says until it closes the connection.
fn said(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn ask(port: u16, word: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(word).unwrap();
    said(stream)
}

/// The value behind a name in what `mntr` or `srvr` says.
fn figure(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.trim().parse().unwrap_or_else(|_| panic!("{name}{line} is not a number"))
}

/// Every run of digits as `N`, of hexadecimal ones behind `0x` as `0xH`, and dates as `DATE`.
fn masked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix("0x") {
            out.push_str("0xH");
            rest = behind.trim_start_matches(|letter: char| letter.is_ascii_hexdigit());
        } else if first.is_ascii_digit() {
            out.push('N');
            rest = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
        } else if let Some(behind) = rest.strip_prefix("expire at ") {
            out.push_str("expire at DATE");
            rest = &behind[behind.find(":\n").unwrap()..];
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

/// A node with a zoo.cfg of these lines, its clients' port, and its file.
fn start(dir: &Path, name: &str, lines: &str) -> (Member, u16) {
    let port = free_ports(1)[0];
    let data = dir.join(name);
    std::fs::create_dir_all(&data).unwrap();
    let file = dir.join(format!("{name}.cfg"));
    let common = format!("tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n", data.display());
    std::fs::write(&file, common + lines).unwrap();
    let mut command = tidelock();
    command.arg("--zoo-cfg").arg(&file).current_dir(dir).stdin(Stdio::null());
    let mut node = Member::start(command, dir, name);
    node.wait_until_ready();
    (node, port)
}

const EVERYTHING: &str = "4lw.commands.whitelist=*\nadmin.enableServer=false\n";

/// Scripts cut these texts by position, comma and colon: each must have the shape of ZooKeeper's own.
#[test]
fn every_word_has_the_shape_that_zookeeper_gives_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_node, port) = start(dir.path(), "data", EVERYTHING);
    let (mut one, mut other) = (Client::connect(port), Client::connect(port));
    one.create("/a", b"", 0).unwrap();
    one.create("/a/e1", b"", EPHEMERAL).unwrap();
    one.create("/a/e2", b"", EPHEMERAL).unwrap();
    other.create("/a/e3", b"", EPHEMERAL).unwrap();
    one.get("/a", true).unwrap();
    other.get("/a", true).unwrap();
    other.ping();

    let word = |word: &str| ask(port, word.as_bytes());
    let shape = |text: &str| masked(&word(text));
    let sessions = [format!("0x{:x}", one.session), format!("0x{:x}", other.session)];
    assert_eq!(word("ruok"), "imok");
    assert_eq!(word("isro"), "rw");
    let server = "Latency min/avg/max: N/N.N/N\nReceived: N\nSent: N\nConnections: N\nOutstanding: N\nZxid: 0xH\n\
                  Mode: standalone\nNode count: N\n";
    let version = "Zookeeper version: N.N.N-tidelock-N.N.N\n";
    assert_eq!(shape("srvr"), format!("{version}{server}"));
    let client = " /N.N.N.N:N[N](queued=N,recved=N,sent=N)\n";
    assert_eq!(shape("stat"), format!("{version}Clients:\n{client}{client}{client}\n{server}"));
    let details = |last: &str| {
        format!(
            " /N.N.N.N:N[N](queued=N,recved=N,sent=N,sid=0xH,lop={last},est=N,to=N,lcxid=0xH,lzxid=0xH,lresp=N,llat=N,\
             minlat=N,avglat=N,maxlat=N)\n"
        )
    };
    assert_eq!(shape("cons"), format!("{}{}{client}\n", details("GETD"), details("PING")));
    let configuration = "clientPort=N\nsecureClientPort=-N\ndataDir=PATH\ndataDirSize=N\ndataLogDir=PATH\ndataLogSize=N\n\
                         tickTime=N\nmaxClientCnxns=N\nminSessionTimeout=N\nmaxSessionTimeout=N\n\
                         clientPortListenBacklog=-N\nserverId=N\n";
    let data = dir.path().join("data/tidelock").display().to_string();
    assert_eq!(masked(&word("conf").replace(&data, "PATH")), configuration);
    assert!(word("conf").contains(&format!("clientPort={port}\n")) && word("conf").ends_with("serverId=1\n"));
    assert_eq!(
        shape("dump").replace("Sets (N)/(N):\nN expire at DATE:\n\t0xH\nN expire at", "Sets (N)/(N):\nN expire at"),
        "SessionTracker dump:\nSession Sets (N)/(N):\nN expire at DATE:\n\t0xH\n\t0xH\nephemeral nodes dump:\n\
         Sessions with Ephemerals (N):\n0xH:\n\t/a/eN\n\t/a/eN\n0xH:\n\t/a/eN\nConnections dump:\n\
         Connections Sets (N)/(N):\nN expire at DATE:\n\tip: /N.N.N.N:N sessionId: 0xH\n\
         \tip: /N.N.N.N:N sessionId: 0xH\nN expire at DATE:\n\tip: /N.N.N.N:N sessionId: 0xH\n"
    );
    assert_eq!(word("wchs"), "2 connections watching 1 paths\nTotal watches:2\n");
    assert_eq!(word("wchc"), format!("{}\n\t/a\n{}\n\t/a\n\n", sessions[0], sessions[1]));
    assert_eq!(word("wchp"), format!("/a\n\t{}\n\t{}\n\n", sessions[0], sessions[1]));
    let environment = word("envi");
    assert!(environment.starts_with("Environment:\nzookeeper.version=3.9.4-"), "{environment}");
    assert!(environment.contains("\nos.name=") && environment.contains("\njava.version=<NA>\n"), "{environment}");
    assert_eq!(shape("dirs"), "datadir_size: N\nlogdir_size: N\n");
    assert_eq!(masked(&format!("0x{}", word("hash"))), "0xH: N\n");
    assert_eq!(word("gtmk"), "306");
    assert_eq!(ask(port, &[&b"stmk"[..], &420u64.to_be_bytes()].concat()), "420");
    assert_eq!(word("gtmk"), "420");
    assert_eq!(word("crst"), "Connection stats reset.\n");
    assert!(word("cons").contains("recved=0,sent=0,sid=") && word("cons").contains("lzxid=0xffffffffffffffff"));
    assert_eq!(word("srst"), "Server stats reset.\n");
    let server = word("srvr");
    assert_eq!((figure(&server, "Received:"), figure(&server, "Sent:")), (1.0, 1.0), "the two words since");
}

/// Dashboards and alerts are drawn from these numbers: they must move with what happens and come back down.
#[test]
fn figures_follow_what_clients_do() {
    let dir = tempfile::tempdir().unwrap();
    let lines = format!("{EVERYTHING}maxClientCnxns=3\n");
    let (_node, port) = start(dir.path(), "data", &lines);
    let read = || ask(port, b"mntr");
    let before = read();
    assert!(before.starts_with("zk_version\t3.9.4-tidelock-"), "{before}");
    assert!(before.contains("\nzk_server_state\tstandalone\n"), "{before}");
    assert!(before.lines().all(|line| line.starts_with("zk_") && line.split('\t').count() == 2), "{before}");
    let mut client = Client::connect(port);
    client.create("/a", &[7; 1000], 0).unwrap();
    client.create("/a/e", b"", EPHEMERAL).unwrap();
    client.get("/a", true).unwrap();
    client.children("/a", true).unwrap();
    let during = read();
    let grew = |name: &str| figure(&during, name) - figure(&before, name);
    assert_eq!(figure(&during, "zk_znode_count"), 6.0, "the root, three of ZooKeeper's own, and two");
    assert_eq!((figure(&during, "zk_ephemerals_count"), figure(&during, "zk_global_sessions")), (1.0, 1.0));
    assert_eq!((grew("zk_watch_count"), grew("zk_num_alive_connections")), (2.0, 1.0));
    // The handshake, four requests, and the word; the first word was answered meanwhile.
    assert_eq!((grew("zk_packets_received"), grew("zk_packets_sent")), (6.0, 6.0));
    assert_eq!(figure(&during, "zk_outstanding_requests"), 0.0);
    assert!(figure(&during, "zk_approximate_data_size") > 1000.0);
    assert!(figure(&during, "zk_open_file_descriptor_count") > 5.0);
    let latency = ["zk_min_latency", "zk_avg_latency", "zk_max_latency"].map(|name| figure(&during, name));
    assert!(latency[0] <= latency[1] && latency[1] <= latency[2], "{latency:?}");
    let taken: Vec<Client> = (0..2).map(|_| Client::connect(port)).collect();
    assert!(ask_refused(port), "three connections are all there may be from one address");
    drop(taken);
    client.close();
    let after = wait_for("connections to be counted out", || {
        let text = ask(port, b"mntr");
        (!text.is_empty() && figure(&text, "zk_num_alive_connections") == 1.0).then_some(text)
    });
    assert_eq!((figure(&after, "zk_ephemerals_count"), figure(&after, "zk_watch_count")), (0.0, 0.0));
    assert!(figure(&after, "zk_connection_rejected") >= 1.0);
}

fn ask_refused(port: u16) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"ruok").is_err() || said(stream).is_empty()
}

/// Whatever comes instead of a word must be answered with nothing, hold nothing, and disturb nobody; a word that comes
/// in pieces is still a word.
#[test]
fn garbage_is_not_a_word_and_a_word_may_come_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "4lw.commands.whitelist=ruok, srvr\nadmin.enableServer=false\n";
    let (_node, port) = start(dir.path(), "data", lines);
    for garbage in [&b"RUOK"[..], b"abcd", b"kill", b"telnet close", b"\xff\xfe\xfd\xfc", b"ruo"] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(garbage).unwrap();
        // The server may have closed the connection already: then there is nothing to shut down.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert_eq!(said(stream), "", "{garbage:?}");
    }
    for word in ["wchp", "mntr", "stmk", "conf", "dump"] {
        let refused = format!("{word} is not executed because it is not in the whitelist.\n");
        assert_eq!(ask(port, word.as_bytes()), refused);
    }
    for words in [&b"ruok\n"[..], b"ruok\r\n"] {
        assert_eq!(ask(port, words), "imok");
    }
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    for letter in b"ruok" {
        stream.write_all(&[*letter]).unwrap();
        stream.flush().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(said(stream), "imok");
    assert!(ask(port, b"srvr").contains("Mode: standalone"));
}

/// `wchp` on a busy server is known to stop it. Here lists end somewhere, say so, and clients go on meanwhile.
#[test]
fn lists_end_at_a_limit_and_clients_are_served_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (_node, port) = start(dir.path(), "data", EVERYTHING);
    let (mut watcher, mut other) = (Client::connect(port), Client::connect(port));
    for part in 0..12 {
        // Persistent watches, given back as after a reconnection: many in one request.
        let xid = watcher.ask(105, |packet| {
            packet.long(0).int(0).int(0).int(0).int(5000);
            for number in 0..5000 {
                packet.text(&format!("/some/path/of/a/service/{part}-{number}"));
            }
            packet.int(0);
        });
        watcher.answer(xid).unwrap();
    }
    assert_eq!(ask(port, b"wchs"), "1 connections watching 60000 paths\nTotal watches:60000\n");
    let asking = std::thread::spawn(move || (ask(port, b"wchp"), ask(port, b"wchc")));
    while !asking.is_finished() {
        other.ping();
    }
    let (by_path, by_session) = asking.join().unwrap();
    for list in [by_path, by_session] {
        assert!(list.ends_with("(the list is longer; the rest is left out)\n\n"), "{}", list.len());
        assert!(list.matches("/some/path").count() >= 50_000 && list.len() < 4 << 20, "{}", list.len());
    }
}

/// One command's document.
fn command(port: u16, name: &str) -> (u16, Value) {
    let (status, body) = http(port, "GET", &format!("/commands/{name}"), "").expect("an answer");
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{name}: {error}: {body}")))
}

/// Tools read the admin server's JSON by name; every command must answer, and the names must be ZooKeeper's.
#[test]
fn every_admin_command_answers_with_zookeepers_names() {
    let dir = tempfile::tempdir().unwrap();
    let admin = free_ports(1)[0];
    let lines = format!("superDigest=super:secret\nadmin.serverPort={admin}\nadmin.serverAddress=127.0.0.1\n");
    let (_node, port) = start(dir.path(), "data", &lines);
    let mut client = Client::connect(port);
    client.create("/e", b"", EPHEMERAL).unwrap();
    client.get("/e", true).unwrap();
    let (status, links) = http(admin, "GET", "/commands", "").unwrap();
    assert_eq!((status, links.matches("<a href=\"/commands/").count()), (200, 28), "{links}");
    let names = |name: &str, expected: &[&str]| {
        let (_, document) = command(admin, name);
        let inner = document.get(name).filter(|inner| inner.is_object()).unwrap_or(&document);
        let first = inner.get("connections").and_then(|list| list.get(0)).unwrap_or(inner);
        for field in expected {
            assert!(first.get(field).is_some(), "{name} has no {field}: {document}");
        }
        assert_eq!(document["error"], Value::Null, "{document}");
    };
    names("configuration", &["client_port", "data_dir", "tick_time", "max_client_cnxns", "server_id"]);
    names("connections", &["remote_socket_address", "session_id", "last_operation", "avg_latency", "packets_sent"]);
    names("dump", &["expiry_time_to_session_ids", "session_id_to_ephemeral_paths"]);
    names("monitor", &["version", "server_state", "znode_count", "watch_count", "packets_sent", "avg_latency"]);
    names("server_stats", &["packets_sent", "last_processed_zxid", "server_state", "num_alive_client_connections"]);
    names("watch_summary", &["num_connections", "num_paths", "num_total_watches"]);
    names("zabstate", &["voting", "zabstate"]);
    let all: Vec<&str> = links.split("/commands/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    for name in &all {
        let (status, document) = command(admin, name);
        assert_eq!((&document["command"], status == 403), (&(*name).into(), ["snapshot", "restore"].contains(name)));
        assert!(document.get("error").is_some(), "{document}");
    }
    assert_eq!(command(admin, "mntr").1["command"], "monitor", "known by their words, too");
    let session = client.session.to_string();
    assert_eq!(command(admin, "dump").1["session_id_to_ephemeral_paths"][&session][0], "/e");
    assert_eq!(command(admin, "watches").1["session_id_to_watched_paths"][&session][0], "/e");
    assert_eq!(command(admin, "watches_by_path").1["path_to_session_ids"]["/e"][0], client.session);
    assert_eq!(command(admin, "nosuch").1["error"], "Unknown command: nosuch");
    assert_eq!(command(admin, "set_trace_mask").1["error"], "setTraceMask requires long traceMask argument");
    assert_eq!(command(admin, "set_trace_mask?traceMask=5").1["tracemask"], 5);
    let shown = command(admin, "initial_configuration").1["initial_configuration"].to_string();
    assert!(shown.contains("tickTime=2000") && !shown.contains("secret"), "{shown}");
    assert_eq!(http(admin, "GET", "/", "").unwrap().0, 404);
    assert_eq!(http(admin, "POST", "/commands/ruok", "x").unwrap().0, 405);
}

/// ZooKeeper starts although its admin port is taken; a node in its place that did not would be an outage.
#[test]
fn a_taken_admin_port_only_warns() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = taken.local_addr().unwrap().port();
    let (node, port) = start(dir.path(), "data", &format!("admin.serverPort={admin}\n"));
    assert!(ask(port, b"srvr").contains("Mode: standalone"));
    assert!(node.log().contains("admin commands (admin.serverPort) are not served"), "{}", node.log());
    drop(taken);
    let moved = free_ports(1)[0];
    let lines = format!("admin.serverPort={moved}\nadmin.commandURL=/zk/commands\n");
    let (_node, _) = start(dir.path(), "moved", &lines);
    assert_eq!(http(moved, "GET", "/zk/commands/ruok", "").unwrap().0, 200);
    assert_eq!(http(moved, "GET", "/commands/ruok", "").unwrap().0, 404);
}

/// In an ensemble the leader knows its followers, everybody knows the members, and a server without a leader does not
/// pretend to serve: load balancers ask exactly that.
#[test]
fn an_ensemble_tells_who_leads_and_who_follows() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(9);
    let servers: String =
        (0..3).map(|at| format!("server.{}=127.0.0.1:{}:{}\n", at + 1, ports[at], ports[at + 3])).collect();
    let mut nodes: Vec<(Member, u16)> = Vec::new();
    for at in 0..3 {
        let data = dir.path().join(format!("node{at}"));
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("myid"), format!("{}", at + 1)).unwrap();
        let file = dir.path().join(format!("node{at}.cfg"));
        let (client, admin) = (free_ports(1)[0], ports[at + 6]);
        let text = format!(
            "tickTime=2000\ndataDir={}\nclientPort={client}\nclientPortAddress=127.0.0.1\nadmin.serverPort={admin}\n\
             4lw.commands.whitelist=*\n{servers}",
            data.display()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = tidelock();
        command.arg("--zoo-cfg").arg(&file).current_dir(dir.path()).stdin(Stdio::null());
        nodes.push((Member::start(command, dir.path(), &format!("node{at}")), client));
    }
    nodes.iter_mut().for_each(|(node, _)| node.wait_until_ready());
    let leader = wait_for("a leader with two followers in step", || {
        nodes.iter().position(|(_, port)| {
            let text = ask(*port, b"mntr");
            text.contains("zk_server_state\tleader\n") && text.contains("zk_synced_followers\t2\n")
        })
    });
    let follower = (leader + 1) % 3;
    let (led, follows) = (nodes[leader].1, nodes[follower].1);
    let text = ask(led, b"mntr");
    assert_eq!((figure(&text, "zk_quorum_size"), figure(&text, "zk_learners")), (3.0, 2.0));
    assert!(text.contains("zk_peer_state\tleading - broadcast\n"), "{text}");
    assert!(ask(led, b"srvr").ends_with("Proposal sizes last/min/max: -1/-1/-1\n"));
    assert!(!ask(follows, b"mntr").contains("zk_synced_followers"), "only the leader knows");
    let conf = ask(follows, b"conf");
    assert!(conf.contains(&format!("serverId={}\n", follower + 1)) && conf.contains("\nmembership: \n"), "{conf}");
    for (at, port) in ports[..3].iter().enumerate() {
        let line = format!("server.{}=127.0.0.1:{port}:", at + 1);
        assert!(conf.contains(&line), "{line} is missing from {conf}");
    }
    let mut client = Client::connect(follows);
    client.create("/e", b"", EPHEMERAL).unwrap();
    let dump = ask(follows, b"dump");
    assert!(dump.contains(&format!("Global Sessions(1):\n0x{:x}\t4000ms\n", client.session)), "{dump}");
    let known =
        wait_for("the leader to know the session", || Some(ask(led, b"dump")).filter(|dump| dump.contains("\t/e\n")));
    assert!(known.starts_with("SessionTracker dump:\nSession Sets (1)/(1):\n1 expire at "), "{known}");
    let (told, view) = (command(ports[follower + 6], "leader").1, command(ports[leader + 6], "voting_view").1);
    assert_eq!((&told["is_leader"], &told["leader_id"]), (&false.into(), &(leader + 1).into()), "{told}");
    assert_eq!(view["current_config"].as_object().unwrap().len(), 3, "{view}");
    assert_eq!(command(ports[leader + 6], "zabstate").1["zabstate"], "broadcast");

    let third = (leader + 2) % 3;
    nodes[leader].0.kill();
    nodes[third].0.kill();
    wait_for("the last one to say that it does not serve", || {
        (ask(follows, b"srvr") == "This ZooKeeper instance is not currently serving requests\n").then_some(())
    });
    assert_eq!(ask(follows, b"ruok"), "imok", "it runs all the same");
}
