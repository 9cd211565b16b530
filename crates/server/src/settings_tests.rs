use super::*;

/// A setting given on the command line must win, or an operator could not override a file in an
/// emergency; what is not given must still come from the file.
#[test]
fn what_is_said_first_wins_and_the_rest_is_kept() {
    let flags = Settings { name: Some("flag".into()), ..Settings::default() };
    let file = Settings::from_toml("name = 'file'\nheartbeat-ms = 50").unwrap();
    let merged = flags.over(file);
    assert_eq!(merged.name.as_deref(), Some("flag"));
    assert_eq!(merged.heartbeat_ms, Some(50));
}

/// A misspelt name in the file must not be ignored: the operator believes it is in force.
#[test]
fn an_unknown_name_in_the_file_is_refused_by_name() {
    let error = Settings::from_toml("heartbeet-ms = 50").unwrap_err();
    assert!(error.contains("heartbeet-ms"), "{error}");
}

/// Every flag must also be readable from the file: a flag missing from `over` or from the file
/// would silently do nothing.
#[test]
fn every_setting_survives_the_file_and_the_merge() {
    use clap::Args as _;
    let names: Vec<String> = Settings::augment_args(clap::Command::new("t"))
        .get_arguments()
        .filter_map(|arg| arg.get_long().map(str::to_owned))
        .collect();
    assert!(names.len() > 15);
    for name in names {
        let value = match name.as_str() {
            "insecure" | "client-cert-auth" | "peer-client-cert-auth" | "auto-tls" | "peer-auto-tls" => "true",
            "zookeeper-replay-watches" => "true",
            "client-listen" | "advertise-client-urls" | "initial-cluster" | "join" | "cipher-suites" => "['x']",
            _ if name.contains("-allowed-") => "['x']",
            "metrics-listen" | "log-outputs" => "['x']",
            "worker-threads" | "quota-bytes" | "catch-up-entries" | "auth-token-ttl-s" | "bcrypt-cost" => "7",
            _ if name.ends_with("-ms") || name.starts_with("max-") => "7",
            _ => "'x'",
        };
        let file = Settings::from_toml(&format!("{name} = {value}")).unwrap();
        assert_ne!(file, Settings::default(), "{name}");
        assert_eq!(Settings::default().over(file.clone()), file, "{name}");
        assert_eq!(file.clone().over(Settings::default()), file, "{name}");
    }
}
