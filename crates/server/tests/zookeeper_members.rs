//! The members as ZooKeeper's clients see and change them: `/zookeeper/config` and reconfig, with real processes.

// A test ends at the first surprise.
#![allow(clippy::unwrap_used)]

#[path = "support/as_etcd.rs"]
mod as_etcd;
#[path = "support/ensemble.rs"]
mod ensemble;
mod support;

use ensemble::{Ensemble, mode};
use support::zookeeper::Client;
use support::{Cluster, free_ports, wait_for};

const NEW_CONFIG_NO_QUORUM: i32 = -13;
const BAD_ARGUMENTS: i32 = -8;
const MARSHALLING: i32 = -5;
const NO_AUTH: i32 = -102;
const BAD_VERSION: i32 = -103;
const RECONFIG_DISABLED: i32 = -123;
const DATA_CHANGED: i32 = 3;
const CONFIG: &str = "/zookeeper/config";
const ANY_VERSION: i64 = -1;

/// The lines about servers, and the version.
fn parts(config: &str) -> (Vec<&str>, i64) {
    let mut lines: Vec<&str> = config.split('\n').collect();
    let version = lines.pop().and_then(|line| line.strip_prefix("version=")).expect("the last line is the version");
    (lines, i64::from_str_radix(version, 16).unwrap())
}

/// Servers tell what they are to clients when they start, which may be later than the first client comes.
fn wait_until_listed(client: &mut Client, servers: usize) {
    let mut listed = || client.config(false).0.lines().filter(|line| line.starts_with("server.")).count();
    wait_for("all to be listed", || (listed() == servers).then_some(()));
}

/// Clients that look for further servers in this znode (Curator does) must find all of them, at whichever they ask,
/// also those that were never given a zoo.cfg; and the same after every node was started anew.
#[test]
fn every_node_lists_all_that_serve_zookeepers_clients() {
    let mut cluster = Cluster::prepare(3, &[]);
    let ports = free_ports(3);
    for (node, port) in cluster.nodes.iter_mut().zip(&ports) {
        node.add_arguments(&["--zookeeper-listen".to_owned(), format!("127.0.0.1:{port}")]);
    }
    cluster.start_all();
    wait_until_listed(&mut Client::connect(ports[0]), 3);
    let listed = || -> (String, Vec<String>) {
        let read = |port: &u16| {
            let mut client = Client::connect(*port);
            client.sync();
            let (config, stat) = client.config(false);
            // What is there from the beginning says that it never changed, as in ZooKeeper, however early servers were listed.
            let written = if stat.version == 0 { 0 } else { parts(&config).1 };
            assert_eq!(written, stat.mzxid, "it tells the revision it was written at");
            config
        };
        let configs: Vec<String> = ports.iter().map(read).collect();
        assert!(configs.iter().all(|config| *config == configs[0]), "{configs:?}");
        let lines = parts(&configs[0]).0.iter().map(|line| (*line).to_owned()).collect();
        (configs[0].clone(), lines)
    };
    let (config, lines) = listed();
    assert_eq!(lines.len(), 3, "{config}");
    for (at, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("server.{}=127.0.0.1:", at + 1)) && line.contains(":participant;"), "{line}");
    }
    for port in &ports {
        assert!(lines.iter().any(|line| line.ends_with(&format!(";127.0.0.1:{port}"))), "{port}: {config}");
    }
    for node in &mut cluster.nodes {
        node.terminate();
    }
    cluster.start_all();
    assert_eq!(listed().0, config, "nothing changed, so nothing is written anew");
}

/// A node alone has itself to show: what it is to clients must be readable there as in a cluster.
#[test]
fn a_single_node_lists_itself() {
    let mut cluster = Cluster::prepare(1, &[]);
    let port = free_ports(1)[0];
    cluster.nodes[0].add_arguments(&["--zookeeper-listen".to_owned(), format!("127.0.0.1:{port}")]);
    cluster.start_all();
    let mut client = Client::connect(port);
    wait_until_listed(&mut client, 1);
    let (config, _) = client.config(false);
    let (lines, _) = parts(&config);
    assert!(lines.len() == 1 && lines[0].ends_with(&format!(":participant;127.0.0.1:{port}")), "{config}");
    assert_eq!(client.set(CONFIG, b"mine", -1), Err(NO_AUTH));
    assert_eq!(client.reconfig(["", "1", ""], ANY_VERSION), Err(RECONFIG_DISABLED));
}

/// Scripts that grow an ensemble the way ZooKeeper's manual says must work: the new server is added as an observer
/// before it runs, started, made a participant, and removed again; and everybody who watches is told each time.
#[test]
fn a_server_is_added_started_promoted_and_removed_by_reconfig() {
    let mut ensemble = Ensemble::start(1, "reconfigEnabled=true");
    let (mut operator, mut watcher) = (Client::connect(ensemble.port(1)), Client::connect(ensemble.port(2)));
    operator.create("/a", b"1", 0).unwrap();
    let founders: Vec<String> = (1..=3).map(|number| ensemble.line(number, "participant")).collect();
    watcher.sync();
    let (before, _) = watcher.config(true);
    assert_eq!(parts(&before).0, founders);

    // As a real one does, it looks at who asks only after what is asked for.
    let observer = ensemble.line(4, "observer");
    assert_eq!(operator.reconfig(["", "", "nonsense"], ANY_VERSION), Err(BAD_ARGUMENTS));
    assert_eq!(operator.reconfig(["", "x", ""], ANY_VERSION), Err(MARSHALLING));
    assert_eq!(operator.reconfig([&observer, "", ""], 1), Err(BAD_VERSION));
    assert_eq!(operator.reconfig([&observer, "", ""], ANY_VERSION), Err(NO_AUTH));
    operator.authenticate("super:test");
    let (config, stat) = operator.reconfig([&observer, "", ""], parts(&before).1).unwrap();
    let (lines, version) = parts(&config);
    assert_eq!((lines[..3].to_vec(), lines[3]), (founders.iter().map(String::as_str).collect(), observer.as_str()));
    assert_eq!((version, stat.mzxid), (stat.mzxid, stat.mzxid));
    assert_eq!(watcher.event(), (DATA_CHANGED, CONFIG.to_owned()));
    watcher.sync();
    assert_eq!(watcher.config(true), (config, stat));
    assert_eq!(operator.reconfig(["", "4", ""], parts(&before).1), Err(BAD_VERSION), "that was the one before");

    // What does not run cannot count.
    let participant = ensemble.line(4, "participant");
    assert_eq!(operator.reconfig([&participant, "", ""], ANY_VERSION), Err(NEW_CONFIG_NO_QUORUM));
    ensemble.start_one(4, 4, &["--initial-cluster-state", "existing"]);
    ensemble.wait_until_ready(4);
    assert_eq!(mode(ensemble.port(4)).as_deref(), Some("observer"));
    let mut new = Client::connect(ensemble.port(4));
    assert_eq!(new.get("/a", false).unwrap().0, b"1");
    new.set("/a", b"2", -1).unwrap();

    let config = wait_for("the new server to have caught up", || {
        operator.reconfig([&participant, "", ""], ANY_VERSION).ok().map(|(config, _)| config)
    });
    assert_eq!(parts(&config).0[3], participant);
    wait_for("it to follow", || (mode(ensemble.port(4)).as_deref() == Some("follower")).then_some(()));
    assert_eq!(watcher.event(), (DATA_CHANGED, CONFIG.to_owned()));

    let (config, _) = operator.reconfig(["", "4", ""], ANY_VERSION).unwrap();
    assert_eq!(parts(&config).0, founders);
    ensemble.wait_until_ended(4);
    assert_eq!(operator.get("/a", false).unwrap().0, b"2");
}

/// A participant that becomes an observer, also the one that leads, must not take the majority with it, and all that
/// is asked for at once is done at once.
#[test]
fn servers_change_their_parts_and_the_whole_list_is_replaced() {
    let ensemble = Ensemble::start(0, "reconfigEnabled=true");
    let leader = ensemble.leader();
    let mut operator = Client::connect(ensemble.port(leader % 3 + 1));
    operator.authenticate("super:test");
    let (config, _) = operator.reconfig([&ensemble.line(leader, "observer"), "", ""], ANY_VERSION).unwrap();
    assert!(config.contains(&ensemble.line(leader, "observer")), "{config}");
    assert_ne!(wait_for("another leader", || Some(ensemble.leader()).filter(|next| *next != leader)), leader);
    wait_for("it to observe", || (mode(ensemble.port(leader)).as_deref() == Some("observer")).then_some(()));
    operator.create("/still", b"", 0).unwrap();

    let all = [1, 2, 3].map(|number| ensemble.line(number, "participant")).join(",");
    let config = wait_for("all to take part again", || operator.reconfig(["", "", &all], ANY_VERSION).ok());
    assert_eq!(parts(&config.0).0.join(","), all);
    // Two of three cannot be lost at once with one that would be left to decide alone, nor all of them.
    assert_eq!(operator.reconfig(["", "1,2,3", ""], ANY_VERSION), Err(BAD_ARGUMENTS));
    assert_eq!(operator.reconfig(["", "77", ""], ANY_VERSION).unwrap().0, config.0);
}

/// Observers carry readers far away from the others: they serve clients, and nobody waits for them, neither at the
/// beginning nor for a majority.
#[test]
fn an_observer_of_the_file_serves_clients_and_nobody_waits_for_it() {
    let mut ensemble = Ensemble::start_observed();
    let mut client = Client::connect(ensemble.port(1));
    client.create("/before", b"x", 0).unwrap();
    ensemble.start_one(4, 4, &[]);
    ensemble.wait_until_ready(4);
    assert_eq!(mode(ensemble.port(4)).as_deref(), Some("observer"));
    let mut far = Client::connect(ensemble.port(4));
    far.sync();
    assert!(far.exists("/before", false).is_ok());
    far.create("/far", b"y", 0).unwrap();
    wait_until_listed(&mut far, 4);
    let (config, _) = far.config(false);
    assert!(config.contains(&ensemble.line(4, "observer")), "{config}");
    // Two of three that vote are left: enough with the observer gone, too.
    let leader = ensemble.leader();
    let other = if leader == 3 { 1 } else { leader + 1 };
    ensemble.kill(4);
    ensemble.kill(leader);
    let mut client = Client::connect(ensemble.port(other));
    client.create("/after", b"z", 0).unwrap();
    assert!(client.exists("/far", false).is_ok());
}
