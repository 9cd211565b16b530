use super::*;

fn settings(toml: &str) -> Settings {
    Settings::from_toml(toml).unwrap()
}

fn problems(toml: &str) -> String {
    match Config::check(settings(toml)) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(failure) => failure.to_string(),
    }
}

/// The sample file is what operators copy; if it did not parse, or said something else than what
/// happens without it, they would run with settings they did not choose.
#[test]
fn the_sample_file_parses_and_says_the_defaults() {
    let sample = settings(include_str!("../tidelock.sample.toml"));
    let mut config = Config::check(sample).unwrap();
    let mut default = Config::check(Settings::default()).unwrap();
    // The sample names the default addresses, so they count as the user's own; and the number of
    // cores is not the same everywhere.
    for listen in config.client_listen.iter_mut().chain([&mut config.peer_listen]).chain(&mut config.admin_listen) {
        listen.is_default = true;
    }
    config.worker_threads = 0;
    default.worker_threads = 0;
    assert_eq!(config, default);
}

/// A setting that is not in the sample does not exist for most operators.
#[test]
fn the_sample_file_mentions_every_setting() {
    use clap::Args as _;
    let sample = include_str!("../tidelock.sample.toml");
    for argument in Settings::augment_args(clap::Command::new("t")).get_arguments() {
        let name = argument.get_long().unwrap();
        assert!(sample.contains(&format!("{name} = ")), "{name} is missing");
    }
}

/// Fixing one problem per attempt is how outages get long: all are reported at once, with what to do.
#[test]
fn all_problems_are_reported_together_with_what_to_do() {
    let text = problems(
        "name = 'a b'\nheartbeat-ms = 100\nelection-ms = 200\nadmin-listen = '0.0.0.0:7480'\nlog-format = 'xml'\n\
         max-txn-ops = 0\ninitial-cluster = ['a=10.0.0.1:2380', 'a=10.0.0.1:2380', 'oops']",
    );
    for expected in [
        "8 settings need attention",
        "--name: \"a b\"",
        "set it to 500 or more",
        "--admin-listen: 0.0.0.0:7480 can be reached from other machines",
        "give text or json",
        "--max-txn-ops: 0 is out of bounds",
        "list every address once",
        "\"oops\" has no '='",
    ] {
        assert!(text.contains(expected), "{expected:?} is missing from:\n{text}");
    }
}

/// Without this a copy-pasted `0.0.0.0` would put an unauthenticated store on the network.
#[test]
fn an_address_others_can_reach_needs_insecure() {
    let text = problems("client-listen = ['0.0.0.0:2379']\nadvertise-client-urls = ['http://10.0.0.1:2379']");
    assert!(text.contains("add --insecure"), "{text}");
    let allowed =
        settings("client-listen = ['0.0.0.0:2379']\nadvertise-client-urls = ['http://10.0.0.1:2379']\ninsecure = true");
    let config = Config::check(allowed).unwrap();
    assert!(config.warnings.iter().any(|warning| warning.contains("--insecure")));
}

/// `0.0.0.0` cannot be dialled; advertised to clients it would send them nowhere.
#[test]
fn listening_everywhere_needs_an_address_to_advertise() {
    let text = problems("client-listen = ['0.0.0.0:2379']\npeer-listen = '0.0.0.0:2380'\ninsecure = true");
    assert!(text.contains("--advertise-client-urls") && text.contains("--peer-advertise"), "{text}");
}

/// Four members tolerate one failure, as three do, and need one more vote for every write.
#[test]
fn an_even_cluster_is_warned_about_and_not_refused() {
    let even = settings("name = 'a'\ninitial-cluster = ['a=127.0.0.1:1', 'b=127.0.0.1:2']");
    assert!(Config::check(even).unwrap().warnings.iter().any(|warning| warning.contains("cluster of 2")));
    let odd = settings("name = 'a'\ninitial-cluster = ['a=127.0.0.1:1', 'b=127.0.0.1:2', 'c=127.0.0.1:3']");
    assert_eq!(Config::check(odd).unwrap().warnings, Vec::<String>::new());
}

/// The peer address in the list is the one the others dial; listening elsewhere by default would
/// leave the node unreachable.
#[test]
fn a_founder_listens_at_its_address_in_the_list() {
    let config =
        Config::check(settings("name = 'b'\ninitial-cluster = ['a=127.0.0.1:1', 'b=127.0.0.1:2', 'c=127.0.0.1:3']"))
            .unwrap();
    assert_eq!(config.peer_listen.address, "127.0.0.1:2".parse().unwrap());
    assert_eq!(config.peer_advertise.as_deref(), Some("127.0.0.1:2"));
}

/// A node that is not in its own list would found a cluster it can never lead or vote in.
#[test]
fn a_node_missing_from_its_own_list_is_refused() {
    let text = problems("name = 'z'\ninitial-cluster = ['a=127.0.0.1:1']");
    assert!(text.contains("does not list this node, \"z\""), "{text}");
}

/// Founding and joining at once would be two clusters.
#[test]
fn founding_and_joining_exclude_each_other() {
    let text = problems("name = 'a'\ninitial-cluster = ['a=127.0.0.1:1']\njoin = ['http://127.0.0.1:7480']");
    assert!(text.contains("cannot be combined"), "{text}");
}

/// One port cannot carry two protocols; found out at bind time the message would blame another program.
#[test]
fn two_listeners_on_one_address_are_refused() {
    let text = problems("client-listen = ['127.0.0.1:7480']");
    assert!(text.contains("--admin-listen: 127.0.0.1:7480 is already used"), "{text}");
}

#[test]
fn addresses_are_told_from_nonsense() {
    for good in ["127.0.0.1:1", "[::1]:2380", "host.example:65535"] {
        assert_eq!(check_host_port(good, false), Ok(()), "{good}");
    }
    for bad in ["127.0.0.1", ":2380", "::1:2380", "host:99999", "host:", "ho st:1", "h/x:1", "host:0"] {
        assert!(check_host_port(bad, false).is_err(), "{bad}");
    }
}
