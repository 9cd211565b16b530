use super::super::arguments::{Asked, read};
use super::super::flags::{FLAGS, Kind};
use super::*;
use crate::config::Config;

fn values(words: &[&str]) -> Values {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    match read(&words) {
        Ok(Asked::Run(values)) => values,
        other => panic!("{other:?}"),
    }
}

fn settings(words: &[&str]) -> Settings {
    translate(&values(words)).unwrap().settings
}

fn problems(words: &[&str]) -> String {
    translate(&values(words)).unwrap_err().join("\n")
}

/// `etcd` without a word must serve where etcd would, and keep its data where etcd would.
#[test]
fn without_flags_everything_is_where_etcd_has_it() {
    let settings = settings(&[]);
    assert_eq!(settings.name.as_deref(), Some("default"));
    assert_eq!(settings.data_dir, Some("default.etcd".into()));
    assert_eq!(settings.client_listen.as_deref(), Some(["http://127.0.0.1:2379".to_owned()].as_slice()));
    assert_eq!(settings.advertise_client_urls.as_deref(), Some(["http://localhost:2379".to_owned()].as_slice()));
    assert_eq!(settings.peer_listen.as_deref(), Some("http://127.0.0.1:2380"));
    assert_eq!(settings.initial_cluster.as_deref(), Some(["default=http://localhost:2380".to_owned()].as_slice()));
    assert_eq!(settings.insecure, Some(false));
    Config::check(settings).unwrap();
}

/// etcd forgets what it is told to, and nothing else: who reads old revisions there must find them here. Our own nodes
/// may never be asked to forget, so they have a bound.
#[test]
fn history_has_no_bound_in_etcds_mode_and_one_of_its_own_otherwise() {
    let bound = |settings| Config::check(settings).unwrap().service.history_bound;
    for words in [[].as_slice(), &["--auto-compaction-retention=8"], &["--quota-backend-bytes=8589934592"]] {
        assert_eq!(bound(settings(words)), None, "{words:?}");
    }
    let ours = bound(Settings::default()).unwrap();
    assert_eq!(ours.revisions_max.get(), 1_000_000);
}

/// What every tutorial on a cluster of three starts.
#[test]
fn a_member_of_three_is_understood() {
    let settings = settings(&[
        "--name=b",
        "--listen-client-urls=http://0.0.0.0:2379",
        "--advertise-client-urls=http://10.0.0.2:2379",
        "--listen-peer-urls=http://10.0.0.2:2380",
        "--initial-advertise-peer-urls=http://10.0.0.2:2380",
        "--initial-cluster=a=http://10.0.0.1:2380,b=http://10.0.0.2:2380,c=http://10.0.0.3:2380",
        "--initial-cluster-token=t",
        "--listen-metrics-urls=http://localhost:2381",
        "--quota-backend-bytes=8589934592",
        "--auto-compaction-retention=8",
        "--heartbeat-interval=250",
        "--election-timeout=2500",
        "--grpc-keepalive-interval=1h",
        "--experimental-watch-progress-notify-interval=5s",
    ]);
    assert_eq!(settings.initial_cluster.as_ref().unwrap()[1], "b=http://10.0.0.2:2380");
    assert_eq!(settings.metrics_listen.as_deref(), Some(["http://127.0.0.1:2381".to_owned()].as_slice()));
    assert_eq!((settings.quota_bytes, settings.heartbeat_ms), (Some(8 << 30), Some(250)));
    assert_eq!((settings.ping_after_ms, settings.progress_notify_ms), (Some(3_600_000), Some(5_000)));
    assert_eq!(settings.insecure, Some(true));
    let config = Config::check(settings).unwrap();
    assert_eq!(config.election_timeout, Duration::from_millis(2500));
    assert_eq!(config.peer_advertise.as_deref(), Some("10.0.0.2:2380"));
}

/// etcd repeats a name for a member with several peer URLs.
#[test]
fn a_member_may_have_several_peer_urls() {
    let settings = settings(&[
        "--name=a",
        "--initial-cluster=a=http://127.0.0.1:1,a=http://127.0.0.1:2,b=http://127.0.0.1:3",
        "--initial-advertise-peer-urls=http://127.0.0.1:1,http://127.0.0.1:2",
    ]);
    let config = Config::check(settings).unwrap();
    assert_eq!(config.peer_advertise.as_deref(), Some("127.0.0.1:1"));
}

/// Every flag that is called honoured must do something: here, change the settings or be looked at.
#[test]
fn every_honoured_flag_is_translated() {
    // These are looked at without becoming a setting.
    const CHECKED_ONLY: [&str; 2] = ["config-file", "feature-gates"];
    for flag in FLAGS.iter().filter(|flag| flag.fate == Fate::Honoured && !CHECKED_ONLY.contains(&flag.name)) {
        let value = match (flag.name, flag.kind) {
            ("log-level", _) => "warn",
            ("log-format", _) => "json",
            ("initial-cluster", _) => "x=http://127.0.0.1:9",
            ("auto-compaction-mode", _) => "revision",
            (name, Kind::Text) if name.contains("-urls") => "http://127.0.0.1:9",
            (_, Kind::Text) => "x",
            (_, Kind::Bool) => "true",
            (_, Kind::Number) => "7",
            (_, Kind::Duration) => "7s",
        };
        let (mut with, mut without) = (Values::new(), Values::new());
        // Listening without advertising is refused.
        let advertised = Given { value: "http://127.0.0.1:8".into(), source: Source::Flag };
        if flag.name != "advertise-client-urls" {
            with.insert("advertise-client-urls", advertised.clone());
            without.insert("advertise-client-urls", advertised);
        }
        with.insert(flag.name, Given { value: value.into(), source: Source::Flag });
        assert_ne!(translate(&with).unwrap().settings, translate(&without).unwrap().settings, "{}", flag.name);
    }
}

/// What is ignored is said, with the reason; what is refused says what to do instead.
#[test]
fn nothing_that_was_given_is_passed_over_in_silence() {
    let notes = translate(&values(&["--snapshot-count=5000", "--feature-gates=LeaseCheckpoint=true"])).unwrap().notes;
    assert!(notes.iter().any(|note| note.starts_with("--snapshot-count has no effect: ")), "{notes:?}");
    assert!(notes.iter().any(|note| note.starts_with("feature gate LeaseCheckpoint has no effect: ")), "{notes:?}");
    for (words, expected) in [
        (vec!["--discovery=http://d"], "--discovery=http://d is not supported"),
        (vec!["--proxy=on"], "load balancer"),
        (vec!["--force-new-cluster"], "restore a backup"),
        (vec!["--enable-v2=true"], "use the v3 API"),
        (vec!["--host-whitelist=example.com"], "not checked by host name"),
        (vec!["--feature-gates=Magic=true"], "unrecognized feature gate: Magic"),
        (vec!["--log-level=loud"], "give debug, info, warn"),
        (vec!["--listen-client-urls=http://127.0.0.1:1"], "is required when --listen-client-urls is set explicitly"),
        (vec!["--listen-metrics-urls=unix://x:1"], "Unix sockets are not served"),
        (vec!["--listen-peer-urls=http://127.0.0.1:1,http://127.0.0.2:1"], "at one address only"),
        (
            vec!["--name=a", "--initial-cluster=a=http://h:1", "--initial-advertise-peer-urls=http://h:2"],
            "h:2 is not what --initial-cluster says of \"a\"",
        ),
    ] {
        let text = problems(&words);
        assert!(text.contains(expected), "{expected:?} is missing from:\n{text}");
    }
    // Asking for nothing is fine.
    let words = ["--discovery=", "--proxy=off", "--force-new-cluster=false", "--enable-v2=F", "--host-whitelist=*"];
    assert_eq!(translate(&values(&words)).unwrap().notes, Vec::<String>::new());
}
