use super::super::keys::KEYS;
use super::super::properties::read;
use super::*;
use crate::config::{Config, Origin};

fn with(text: &str, dynamic: &str, found: &Found) -> Result<Translated, Vec<String>> {
    translate(&read(text).unwrap(), &read(dynamic).unwrap(), found, false)
}

fn as_server(myid: &str) -> Found {
    Found { directory: true, myid: Some(myid.into()), zookeepers_data: false }
}

fn translated(text: &str) -> Translated {
    with(text, "", &Found::default()).unwrap()
}

fn problems(text: &str, found: &Found) -> String {
    with(text, "", found).unwrap_err().join("\n")
}

/// What every tutorial begins with. Clients come from other machines, as with ZooKeeper; nothing else is served.
#[test]
fn the_sample_file_is_a_single_node() {
    let Translated { settings, details, notes } =
        translated("tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir=/var/lib/zookeeper\nclientPort=2181\n");
    assert_eq!(settings.zookeeper_listen.as_deref(), Some("0.0.0.0:2181"));
    assert_eq!(settings.data_dir, Some("/var/lib/zookeeper/tidelock".into()));
    assert_eq!((settings.name.as_deref(), settings.zookeeper_tick_ms), (Some("server.1"), Some(2_000)));
    assert_eq!(settings.insecure, Some(true));
    let client_address = Some("0.0.0.0:2181".to_owned());
    assert_eq!(details, ZookeeperDetails { server_number: Some(1), client_address, ..ZookeeperDetails::default() });
    assert!(notes.iter().any(|note| note.starts_with("initLimit has no effect: ")), "{notes:?}");
    let config = Config::check(settings).unwrap();
    assert_eq!((config.origin, config.client_listen, config.admin_listen), (Origin::Alone, vec![], None));
    assert_eq!(config.peer_listen.address.to_string(), "127.0.0.1:0", "two such nodes must not clash");
    assert!(config.service.retention.is_some(), "nobody else forgets old versions of znodes");
}

/// An ensemble of three, each with the same lines: all must found the same cluster, and each be itself.
#[test]
fn servers_are_founders_and_myid_says_which_is_this_one() {
    let text = "dataDir=/d\nclientPort=2181\nserver.1=zk1:2888:3888\nserver.2=localhost:2889:3889\n\
                server.3=zk3:2890:3890:participant;2181\n";
    let Translated { settings, details, .. } = with(text, "", &as_server("2")).unwrap();
    assert_eq!(settings.name.as_deref(), Some("server.2"));
    assert_eq!(settings.peer_listen.as_deref(), Some("127.0.0.1:2889"));
    let founders = ["server.1=zk1:2888", "server.2=localhost:2889", "server.3=zk3:2890"].map(str::to_owned);
    assert_eq!(settings.initial_cluster.as_deref(), Some(founders.as_slice()));
    assert_eq!((details.server_number, details.advertise.as_deref()), (Some(2), Some("localhost:2181")));
    assert_eq!((details.election_port, details.reconfig, details.read_only_mode), (Some(3889), false, false));
    assert!(matches!(Config::check(settings).unwrap().origin, Origin::Founders(list) if list.len() == 3));

    let everywhere = with(&format!("{text}quorumListenOnAllIPs=true"), "", &as_server("3")).unwrap();
    assert_eq!(everywhere.settings.peer_listen.as_deref(), Some("0.0.0.0:2890"));
    assert_eq!(everywhere.details.advertise.as_deref(), Some("zk3:2181"));

    let alone = with("dataDir=/d\nserver.7=h:2888:3888;127.0.0.1:2181", "", &Found::default()).unwrap();
    assert_eq!(alone.settings.name.as_deref(), Some("server.7"), "one server needs no myid");
    assert_eq!(alone.settings.zookeeper_listen.as_deref(), Some("127.0.0.1:2181"));
}

/// Limits that protect a server must be in force.
#[test]
fn limits_are_taken_over() {
    let details = translated(
        "dataDir=/d\nclientPort=2181\nclientPortAddress=::1\nmaxClientCnxns=0\nminSessionTimeout=1000\n\
         maxSessionTimeout=-1\njute.maxbuffer=4096\n4lw.commands.whitelist=stat, ruok\nsuperDigest=super:abc=\n\
         enforceQuota=true\n",
    );
    assert_eq!(details.settings.zookeeper_listen.as_deref(), Some("[::1]:2181"));
    assert_eq!(details.settings.insecure, Some(false));
    let details = details.details;
    assert_eq!(details.connections_per_address, Some(0));
    assert_eq!((details.session_timeout_min, details.session_timeout_max), (Some(Duration::from_secs(1)), None));
    assert_eq!((details.max_frame, details.super_digest.as_deref()), (Some(4096), Some("super:abc=")));
    assert_eq!(details.words, Some(vec!["stat".to_owned(), "ruok".to_owned()]));
    assert!(details.enforce_quota && !translated("dataDir=/d\nclientPort=1\n").details.enforce_quota);
    let large = translated("dataDir=/d\nclientPort=1\njute.maxbuffer=50000000\n");
    assert_eq!(large.details.max_frame, Some(VALUE_BYTES_MAX));
    assert!(large.notes.iter().any(|note| note.starts_with("jute.maxbuffer is taken as")), "{:?}", large.notes);
}

/// The admin commands are where ZooKeeper has them, and never open a machine whose clients are all on it.
#[test]
fn admin_commands_are_served_where_the_file_says() {
    let admin = |lines: &str| {
        let translated = translated(&format!("dataDir=/d\nclientPort=2181\n{lines}"));
        (translated.settings.zookeeper_admin_listen, translated.settings.insecure)
    };
    let at = |address: &str| Some(address.to_owned());
    assert_eq!(admin(""), (at("0.0.0.0:8080"), Some(true)));
    assert_eq!(admin("clientPortAddress=127.0.0.1"), (at("127.0.0.1:8080"), Some(false)));
    let elsewhere = "clientPortAddress=127.0.0.1\nadmin.serverAddress=10.0.0.1\nadmin.serverPort=9";
    assert_eq!(admin(elsewhere), (at("10.0.0.1:9"), Some(true)));
    assert_eq!(admin("admin.enableServer=false").0, None);
    let path = translated("dataDir=/d\nclientPort=1\nadmin.commandURL=/c\n").details.admin_path;
    assert_eq!(path.as_deref(), Some("/c"));
}

/// Tools and test suites put much into a file that means nothing here; what does no harm must not stop the node, and
/// must be told.
#[test]
fn what_has_no_effect_is_told() {
    let text = "dataDir=/d\nclientPort=2181\ndataLogDir=/l\nautopurge.purgeInterval=1\nadmin.idleTimeout=8080\n\
                serverCnxnFactory=x\nssl.keyStore.location=k\n\
                localSessionsEnabled=true\nzookeeper.snapCount=1\nmetricsProvider.className=p\npeerType=participant\n\
                authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\nextendedTypesEnabled=true\n\
                sslQuorum=false\nsecureClientPort=\njava.security.auth.login.config=/j\n";
    let notes = translated(text).notes;
    assert_eq!(notes.len(), 10, "{notes:?}");
    assert!(notes.iter().all(|note| note.contains(" no effect: ")), "{notes:?}");
    let found = Found { zookeepers_data: true, ..Found::default() };
    let notes = with("dataDir=/d\nclientPort=1\nclientPort=2", "", &found).unwrap().notes;
    assert!(notes[0].contains("clientPort is given on lines 2 and 3; the last one counts"), "{notes:?}");
    assert!(notes[1].contains("/d/version-2 holds the data of a real ZooKeeper, which is not imported"), "{notes:?}");
}

/// Off unless asked for, as with ZooKeeper: members must not be changed, nor stale data be read, by surprise.
#[test]
fn reconfig_and_the_read_only_mode_are_on_if_the_file_says_so() {
    let on = translated("dataDir=/d\nclientPort=2181\nreconfigEnabled=true\nreadonlymode.enabled=TRUE\n").details;
    let off = translated("dataDir=/d\nclientPort=2181\nreconfigEnabled=false\n").details;
    assert_eq!((on.reconfig, on.read_only_mode, off.reconfig, off.read_only_mode), (true, true, false, false));
}

/// Whatever restricts clients and is not in force must stop the node: an operator would rely on it.
#[test]
fn what_cannot_be_honoured_is_refused_with_what_to_do() {
    let base = "dataDir=/d\nclientPort=2181\n";
    for (line, expected) in [
        ("secureClientPort=2281", "needs ssl.keyStore.location"),
        ("secureClientPort=2281\nssl.keyStore.location=/k.jks", "keytool -importkeystore -srckeystore /k.jks"),
        ("secureClientPort=2281\nssl.keyStore.location=/k\nssl.keyStore.type=pkcs12", "openssl pkcs12 -in /k -nodes"),
        ("secureClientPort=2281\nssl.trustStore.location=/t.p12", "keytool -list -rfc -keystore /t.p12"),
        ("secureClientPortAddress=::1", "secureClientPort is not set"),
        ("client.portUnification=true", "secureClientPort of their own"),
        ("ssl.crl=true", "--zookeeper-crl-file"),
        ("ssl.clientHostnameVerification=true", "is not compared"),
        ("ssl.authProvider=mine", "known by their certificates"),
        ("sslQuorum=true", "--peer-cert-file"),
        ("group.1=1:2", "every member has one vote"),
        ("weight.1=2", "every member has one vote"),
        ("peerType=observer", "an observer alone has nobody to observe"),
        ("peerType=boss", "unrecognised peer type"),
        ("enforce.auth.enabled=true", "enforce.auth.schemes does not say"),
        ("enforce.auth.schemes=kerberos", "choose among digest, ip, sasl, x509"),
        ("requireClientAuthScheme=kerberos", "leave it out, or say sasl"),
        ("SASLAuthenticationProvider.superPassword=x", "user_super"),
        ("quorum.auth.enableSasl=true", "let members show certificates"),
        ("skipACL=yes", "superDigest"),
        ("authProvider.2=com.example.Mine", "com.example.Mine cannot be loaded"),
        ("maxClientCnxn=3", "maxClientCnxn (line 3): unknown key\n      what to do: did you mean maxClientCnxns?"),
        ("xyzzy=3", "docs/zookeeper-mode.md"),
        ("maxClientCnxns=many", "\"many\" is not a number"),
        ("tickTime=soon", "\"soon\" is not a number"),
        ("clientPort=70000", "\"70000\" is not a number that fits"),
        ("minSessionTimeout=-7", "-7 is out of bounds"),
        ("minSessionTimeout=99999999", "minSessionTimeout must not be larger than maxSessionTimeout"),
        ("superDigest=super", "is not user:digest"),
        ("server.1=h", "\"h\" has no host"),
        ("server.1=h:1:2:observer", "there are only observers"),
        ("server.1=h:1:2;2182", "2181 is not the port in the line of this server, 2182"),
        ("admin.forceHttps=true", "admin commands have no TLS"),
        ("admin.serverPort=http", "\"http\" is not a number"),
        ("datadir.autocreate=false", "/d is missing, and datadir.autocreate is false"),
    ] {
        let text = problems(&format!("{base}{line}"), &Found::default());
        assert!(text.contains(expected), "{line}: {expected:?} is missing from:\n{text}");
    }
    let count = with("tickTime=x\nclientPort=y\nzzz=1", "", &Found::default()).unwrap_err().len();
    assert_eq!(count, 5, "all problems at once, each once: the two numbers, the key, dataDir and no port to serve");
}

/// A server that does not know who it is must not start as somebody else.
#[test]
fn without_a_number_of_its_own_a_server_does_not_start() {
    let servers = "dataDir=/d\nclientPort=2181\nserver.1=h:1:2\nserver.2=h:3:4\n";
    let missing = problems(servers, &Found::default());
    assert!(missing.contains("/d/myid file is missing"), "{missing}");
    let text = problems(servers, &as_server("zwei"));
    assert!(text.contains("serverid \"zwei\" is not a number"), "{text}");
    let stranger = problems(servers, &as_server("4"));
    assert!(stranger.contains("My id 4 not in the peer list") && stranger.contains("server.1, server.2"), "{stranger}");
    let twice = problems(&format!("{servers}server.01=h:5:6"), &as_server("1"));
    assert!(twice.contains("listed twice"), "{twice}");
}

/// The servers may be in a file of their own, which ZooKeeper rewrites; they must be in one of the two.
#[test]
fn servers_come_from_the_dynamic_file_too() {
    let text = "dataDir=/d\ndynamicConfigFile=/d/dyn\n";
    let servers = "server.1=h:1:2;2181\nserver.2=h:3:4;2182\nversion=100000000\n";
    let translated = with(text, servers, &as_server("2")).unwrap();
    assert_eq!(translated.settings.zookeeper_listen.as_deref(), Some("0.0.0.0:2182"));
    let both = with(&format!("{text}server.3=h:5:6"), servers, &as_server("2")).unwrap_err().join("\n");
    assert!(both.contains("list them in one of the two"), "{both}");
    let odd = with(text, &format!("{servers}tickTime=1"), &as_server("2")).unwrap_err().join("\n");
    assert!(odd.contains("tickTime does not belong"), "{odd}");
}

/// A node whose clients come only through another door needs no port for ZooKeeper's.
#[test]
fn no_client_port_is_needed_when_a_flag_serves_clients() {
    let entries = read("dataDir=/d").unwrap();
    let translated = translate(&entries, &[], &Found::default(), true).unwrap();
    assert_eq!(translated.settings.zookeeper_listen, None);
    let refused = problems("dataDir=/d\nclientPort=0", &Found::default());
    assert!(refused.contains("clientPort is not set"), "{refused}");
}

/// Who may come in, and as whom, must be what the file says; a flag can say otherwise.
#[test]
fn certificates_and_users_are_taken_over() {
    let base = "dataDir=/d\nsecureClientPort=2281\nssl.keyStore.location=/k.pem\n";
    let Translated { settings, details, .. } = translated(base);
    assert_eq!(settings.zookeeper_secure_listen.as_deref(), Some("0.0.0.0:2281"));
    assert_eq!((settings.zookeeper_listen, settings.insecure), (None, Some(false)), "TLS is no danger to be told of");
    assert_eq!(
        (settings.zookeeper_cert_file, settings.zookeeper_key_file),
        (Some("/k.pem".into()), Some("/k.pem".into()))
    );
    assert_eq!(settings.zookeeper_client_auth.as_deref(), Some("need"), "ZooKeeper's default");
    assert_eq!((settings.zookeeper_jaas, details.required_schemes), (None, Vec::<String>::new()));

    let Translated { settings, details, .. } = translated(&format!(
        "{base}clientPort=2181\nsecureClientPortAddress=::1\nssl.trustStore.location=/t\nssl.trustStore.type=PEM\n\
         ssl.clientAuth=want\njava.security.auth.login.config=/jaas\nzookeeper.superUser=ada\n\
         X509AuthenticationProvider.superUser=CN=ada,O=x\nenforce.auth.enabled=true\nenforce.auth.schemes=sasl, x509\n"
    ));
    assert_eq!(settings.zookeeper_secure_listen.as_deref(), Some("[::1]:2281"));
    assert_eq!(settings.zookeeper_trusted_ca_file, Some("/t".into()));
    assert_eq!(
        (settings.zookeeper_client_auth.as_deref(), settings.zookeeper_jaas),
        (Some("want"), Some("/jaas".into()))
    );
    assert_eq!(
        (details.sasl_super_user.as_deref(), details.x509_super_user.as_deref()),
        (Some("ada"), Some("CN=ada,O=x"))
    );
    assert_eq!(details.required_schemes, ["sasl", "x509"]);
    for line in ["sessionRequireClientSASLAuth=true", "requireClientAuthScheme=SASL"] {
        let details = translated(&format!("dataDir=/d\nclientPort=1\n{line}\n")).details;
        assert_eq!(details.required_schemes, ["sasl"], "{line}");
    }
}

/// A row that promises to honour a key which nobody reads would be a lie.
#[test]
fn every_key_that_is_honoured_changes_something() {
    let base = "dataDir=/d\nclientPort=2181\n";
    let without = translated(base);
    for row in KEYS.iter().filter(|row| row.fate == Fate::Honoured) {
        let line = match row.name {
            "admin.commandURL" => "admin.commandURL=/c",
            "admin.enableServer" => "admin.enableServer=false",
            "admin.serverAddress" => "admin.serverAddress=10.0.0.1",
            "4lw.commands.whitelist" => "4lw.commands.whitelist=*",
            "DigestAuthenticationProvider.superDigest" => "DigestAuthenticationProvider.superDigest=super:x",
            "superDigest" => "superDigest=super:x",
            "authProvider." => "authProvider.1=x",
            "clientPortAddress" => "clientPortAddress=10.0.0.1",
            "dataDir" => "dataDir=/other",
            "datadir.autocreate" => "datadir.autocreate=false",
            "server." => "server.9=h:1:2",
            "readonlymode.enabled" => "readonlymode.enabled=true",
            "reconfigEnabled" => "reconfigEnabled=true",
            "enforceQuota" => "enforceQuota=true",
            "peerType" => "peerType=observer",
            "quorumListenOnAllIPs" => "server.9=h:1:2\nquorumListenOnAllIPs=true",
            "enforce.auth.enabled" | "sessionRequireClientSASLAuth" => {
                &format!("{}=true\nenforce.auth.schemes=ip", row.name)
            }
            "enforce.auth.schemes" => "enforce.auth.enabled=true\nenforce.auth.schemes=ip",
            "requireClientAuthScheme" => "requireClientAuthScheme=sasl",
            "java.security.auth.login.config" | "superUser" | "X509AuthenticationProvider.superUser" => {
                &format!("{}=x", row.name)
            }
            name if name.starts_with("ssl.") || name.starts_with("secureClientPort") => {
                &format!("secureClientPort=2281\nssl.keyStore.location=k\n{name}=5000")
            }
            // Which file that is, is seen to before (`super::super::prepare`).
            "dynamicConfigFile" => continue,
            name => &format!("{name}=5000"),
        };
        let changed = with(&format!("{base}{line}"), "", &Found::default());
        assert_ne!(
            changed.map(|changed| (changed.settings, changed.details)),
            Ok((without.settings.clone(), without.details.clone())),
            "{line}"
        );
    }
}
