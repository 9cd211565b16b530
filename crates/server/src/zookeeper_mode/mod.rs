//! Taking a ZooKeeper's place: with `--zoo-cfg FILE` a node has the settings of a ZooKeeper's configuration file.
//!
//! The way: `properties` reads the file, `servers` its lines about members, `translate` turns all of it into settings
//! of ours by the table in `keys`; from there on it is a node like any other, and flags and variables beat the file.
//! What becomes of every key is told in docs/zookeeper-mode.md.
//!
//! What holds: the files of a real ZooKeeper are never touched. Ours are in `dataDir/tidelock`, and a `dataDir` with
//! ZooKeeper's own data is told in a warning, because the node begins without them.

mod keys;
mod properties;
mod servers;
mod translate;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use properties::Entry;
use translate::{Found, translate};

use crate::config::{Config, Origin, ZookeeperDetails};
use crate::failure::Failure;
use crate::identity::even_number_of_voters;
use crate::settings::Settings;

/// Largest configuration file that is read. Real ones have some kilobytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Largest file `myid` that is looked at; it holds one number.
const MYID_BYTES_MAX: u64 = 1024;

/// Settings and checked configuration from a file, and from what was given beside it, which counts more.
pub(crate) fn prepare(path: &Path, given: Settings) -> Result<(Settings, Config), Failure> {
    let entries = read_properties(path, "give an existing file to --zoo-cfg")?;
    let shown = path.display();
    let dynamic = match value(&entries, "dynamicConfigFile") {
        Some(file) => read_properties(Path::new(file), &format!("correct dynamicConfigFile in {shown}"))?,
        None => Vec::new(),
    };
    let found = value(&entries, "dataDir").map(|dir| look_into(Path::new(dir))).transpose()?.unwrap_or_default();
    let serves_otherwise =
        given.zookeeper_listen.is_some() || given.zookeeper_secure_listen.is_some() || given.client_listen.is_some();
    let translated = translate(&entries, &dynamic, &found, serves_otherwise).map_err(|problems| {
        let list: String = problems.iter().map(|problem| format!("\n  - {problem}")).collect();
        Failure::usage(format!("{shown} cannot be honoured, nothing was started:{list}"))
    })?;
    let (admin_may_fail, served_elsewhere) = (given.zookeeper_admin_listen.is_none(), given.zookeeper_listen.is_some());
    let settings = given.over(translated.settings);
    let checked = Config::check(settings.clone());
    let mut config = checked.map_err(|failure| failure.reworded(in_zookeepers_words))?;
    let initial_configuration = Some(without_secrets(&entries));
    config.zookeeper.details = ZookeeperDetails { admin_may_fail, initial_configuration, ..translated.details };
    if served_elsewhere {
        // What the file says of clients is where nobody listens.
        config.zookeeper.details.client_address = None;
        config.zookeeper.details.advertise = None;
    }
    config.warnings.extend(translated.notes);
    mark_observers(&mut config);
    Ok((settings, config))
}

/// Founders do not all vote if the file says so.
fn mark_observers(config: &mut Config) {
    let (observers, Origin::Founders(founders)) = (&config.zookeeper.details.observers, &mut config.origin) else {
        return;
    };
    let said = even_number_of_voters(founders);
    founders.iter_mut().for_each(|founder| founder.observes = observers.contains(&founder.name));
    config.warnings.retain(|warning| Some(warning) != said.as_ref());
    config.warnings.extend(even_number_of_voters(founders));
}

/// Our settings by the key they come from. Messages name what the operator wrote.
const RENAMED: &[(&str, &str)] = &[
    ("--data-dir", "--data-dir (dataDir)"),
    ("--initial-cluster", "--initial-cluster (server.N)"),
    ("--peer-listen", "--peer-listen (server.N)"),
    ("--zookeeper-admin-listen", "--zookeeper-admin-listen (admin.serverPort, admin.serverAddress)"),
    ("--zookeeper-listen", "--zookeeper-listen (clientPort, clientPortAddress)"),
    ("--zookeeper-cert-file", "--zookeeper-cert-file (ssl.keyStore.location)"),
    ("--zookeeper-client-auth", "--zookeeper-client-auth (ssl.clientAuth)"),
    ("--zookeeper-jaas", "--zookeeper-jaas (java.security.auth.login.config)"),
    ("--zookeeper-key-file", "--zookeeper-key-file (ssl.keyStore.location)"),
    ("--zookeeper-secure-listen", "--zookeeper-secure-listen (secureClientPort, secureClientPortAddress)"),
    ("--zookeeper-trusted-ca-file", "--zookeeper-trusted-ca-file (ssl.trustStore.location)"),
    ("--zookeeper-tick-ms", "--zookeeper-tick-ms (tickTime)"),
];

fn in_zookeepers_words(text: &str) -> String {
    RENAMED.iter().fold(text.to_owned(), |text, (ours, both)| text.replace(ours, both))
}

/// A file as operators may see it again. ZooKeeper shows passwords and digests, too.
fn without_secrets(entries: &[Entry]) -> String {
    let is_secret = |key: &str| ["digest", "password"].iter().any(|word| key.to_ascii_lowercase().contains(word));
    let line = |Entry { key, value, .. }: &Entry| {
        let value = if is_secret(key) { "(not shown)" } else { value };
        format!("{key}={value}\n")
    };
    entries.iter().map(line).collect()
}

/// The last value of a key, as with Java.
fn value<'a>(entries: &'a [Entry], key: &str) -> Option<&'a str> {
    let named = |entry: &&Entry| translate::name(&entry.key) == key;
    entries.iter().rev().find(named).map(|entry| entry.value.as_str()).filter(|value| !value.is_empty())
}

fn read_properties(path: &Path, fix: &str) -> Result<Vec<Entry>, Failure> {
    let shown = path.display();
    let text = read_bounded(path, FILE_BYTES_MAX)
        .map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")).hint(fix))?;
    properties::read(&text).map_err(|problem| Failure::usage(format!("{shown}, {problem}")))
}

/// What is in the directory that a file names.
fn look_into(data_dir: &Path) -> Result<Found, Failure> {
    let myid = data_dir.join("myid");
    let text = match read_bounded(&myid, MYID_BYTES_MAX) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::new(format!("cannot read {}: {error}", myid.display()))),
    };
    Ok(Found { directory: data_dir.is_dir(), myid: text, zookeepers_data: data_dir.join("version-2").exists() })
}

pub(crate) fn read_bounded(path: &Path, max: u64) -> std::io::Result<String> {
    let mut text = String::new();
    // One more than allowed tells a file that is too large from one that just fits.
    if File::open(path)?.take(max + 1).read_to_string(&mut text)? as u64 > max {
        return Err(std::io::Error::other(format!("it is larger than {max} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_dir(zoo_cfg: &str, given: &str) -> (tempfile::TempDir, Result<(Settings, Config), String>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zoo.cfg");
        let text = zoo_cfg.replace("DIR", dir.path().to_str().unwrap());
        std::fs::write(&path, text).unwrap();
        std::fs::write(dir.path().join("myid"), "2\n").unwrap();
        let given = Settings::from_toml(given).unwrap();
        let prepared = prepare(&path, given).map_err(|failure| failure.to_string());
        (dir, prepared)
    }

    /// The whole way, from files to what the node is started with; a flag must win over the file, or nobody could
    /// override it in an emergency.
    #[test]
    fn a_file_with_servers_is_a_member_and_flags_beat_it() {
        let zoo_cfg = "dataDir=DIR\nclientPort=2181\nclientPortAddress=127.0.0.1\ndynamicConfigFile=DIR/dynamic\n\
                       zookeeper.DigestAuthenticationProvider.superDigest=super:x\n";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zoo.cfg");
        std::fs::write(&path, zoo_cfg.replace("DIR", dir.path().to_str().unwrap())).unwrap();
        std::fs::write(dir.path().join("myid"), " 2 \n").unwrap();
        std::fs::write(dir.path().join("dynamic"), "server.1=127.0.0.1:1:2\nserver.2=127.0.0.1:3:4;2181\nversion=1\n")
            .unwrap();
        std::fs::create_dir(dir.path().join("version-2")).unwrap();
        let given = Settings::from_toml("client-listen = ['127.0.0.1:2379']\nzookeeper-tick-ms = 100").unwrap();
        let elsewhere = Settings::from_toml("zookeeper-listen = '127.0.0.1:2182'").unwrap();
        assert_eq!(prepare(&path, elsewhere).unwrap().1.zookeeper.details.client_address, None);
        let (settings, config) = prepare(&path, given).unwrap();
        assert_eq!((config.name.as_str(), config.data_dir), ("server.2", dir.path().join("tidelock")));
        assert_eq!(config.peer_listen.address.to_string(), "127.0.0.1:3");
        assert_eq!(config.zookeeper.listen.unwrap().address.to_string(), "127.0.0.1:2181");
        assert_eq!(config.zookeeper.tick.as_millis(), 100);
        assert_eq!(config.zookeeper.details.super_digest.as_deref(), Some("super:x"));
        assert_eq!(config.zookeeper.details.client_address.as_deref(), Some("127.0.0.1:2181"));
        assert_eq!((config.client_listen.len(), config.admin_listen), (1, None));
        assert_eq!(settings.insecure, Some(false));
        assert_eq!(config.zookeeper.admin_listen.unwrap().address.to_string(), "127.0.0.1:8080");
        assert!(config.zookeeper.details.admin_may_fail, "nobody asked for it by name");
        let shown = config.zookeeper.details.initial_configuration.unwrap();
        assert!(shown.contains("clientPort=2181\n") && !shown.contains("super:x"), "{shown}");
        assert!(config.warnings.iter().any(|warning| warning.contains("is not imported")), "{:?}", config.warnings);
    }

    /// An operator reads one message, and must know from it what to do.
    #[test]
    fn what_cannot_be_started_says_why() {
        let missing = prepare(Path::new("/no/such/zoo.cfg"), Settings::default()).unwrap_err().to_string();
        assert!(missing.contains("cannot read /no/such/zoo.cfg") && missing.contains("--zoo-cfg"), "{missing}");
        for (zoo_cfg, expected) in [
            ("dataDir=DIR\nclientPort=\\u1", "zoo.cfg, line 2: \\u1 is not a character"),
            ("dataDir=DIR\nclientPort=2181\ndynamicConfigFile=DIR/gone", "correct dynamicConfigFile in"),
            ("dataDir=DIR\nclientPort=2181\nclientPortAddress=no.such.host.invalid", "(clientPort, clientPortAddress)"),
            ("dataDir=DIR\nclientPort=2181\ntickTime=1", "(tickTime)"),
        ] {
            let (_dir, prepared) = in_dir(zoo_cfg, "");
            let text = prepared.unwrap_err();
            assert!(text.contains(expected), "{expected:?} is missing from:\n{text}");
        }
        let (dir, _) = in_dir("", "");
        std::fs::write(dir.path().join("zoo.cfg"), vec![b'#'; 1024 * 1024 + 1]).unwrap();
        let large = prepare(&dir.path().join("zoo.cfg"), Settings::default()).unwrap_err().to_string();
        assert!(large.contains("larger than"), "{large}");
    }
}
