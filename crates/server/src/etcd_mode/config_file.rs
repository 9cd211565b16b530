//! etcd's config file: YAML (or JSON, which is YAML) with the names of the flags, and two blocks for TLS. When
//! there is one, flags and variables are ignored, as with etcd.
//!
//! Refused, by name: keys that are no flags. etcd ignores them; then a misspelt `client-cert-auth` is an open door.

use std::path::Path;

use yaml_rust2::{Yaml, YamlLoader};

use super::arguments::{self, Given, Source, Values};
use super::flags;

/// Keys of the block for clients, and the flags they are.
const CLIENT_BLOCK: &[(&str, &str)] = &[
    ("cert-file", "cert-file"),
    ("key-file", "key-file"),
    ("client-cert-file", "client-cert-file"),
    ("client-key-file", "client-key-file"),
    ("client-cert-auth", "client-cert-auth"),
    ("trusted-ca-file", "trusted-ca-file"),
    ("auto-tls", "auto-tls"),
    ("crl-file", "client-crl-file"),
    ("client-crl-file", "client-crl-file"),
    ("allowed-hostname", "client-cert-allowed-hostname"),
    ("client-cert-allowed-hostname", "client-cert-allowed-hostname"),
];

/// The same for peers.
const PEER_BLOCK: &[(&str, &str)] = &[
    ("cert-file", "peer-cert-file"),
    ("key-file", "peer-key-file"),
    ("client-cert-file", "peer-client-cert-file"),
    ("client-key-file", "peer-client-key-file"),
    ("client-cert-auth", "peer-client-cert-auth"),
    ("trusted-ca-file", "peer-trusted-ca-file"),
    ("auto-tls", "peer-auto-tls"),
    ("crl-file", "peer-crl-file"),
    ("peer-crl-file", "peer-crl-file"),
    ("allowed-cn", "peer-cert-allowed-cn"),
    ("peer-cert-allowed-cn", "peer-cert-allowed-cn"),
    ("allowed-hostname", "peer-cert-allowed-hostname"),
    ("skip-client-san-verification", "peer-skip-client-san-verification"),
];

/// Reads the file at `path`.
pub(crate) fn read_file(path: &Path) -> Result<Values, String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!(
            "cannot read the config file {}: {error}\n  what to do: give an existing file to --config-file",
            path.display()
        )
    })?;
    read(&text).map_err(|problem| format!("the config file {}: {problem}", path.display()))
}

/// Reads the text of a file.
pub(crate) fn read(text: &str) -> Result<Values, String> {
    let documents = YamlLoader::load_from_str(text).map_err(|error| format!("cannot be understood: {error}"))?;
    let mut values = Values::new();
    let root = match documents.as_slice() {
        [] | [Yaml::Null] => return Ok(values),
        [Yaml::Hash(root)] => root,
        _ => return Err("is not one list of `name: value`".into()),
    };
    for (key, value) in root {
        let key = key.as_str().ok_or_else(|| format!("{key:?} is not a name"))?;
        match key {
            "client-transport-security" => block(key, value, CLIENT_BLOCK, &mut values)?,
            "peer-transport-security" => block(key, value, PEER_BLOCK, &mut values)?,
            // A file that names another would be read for ever.
            "config-file" => return Err("config-file cannot be given in the config file".into()),
            _ => put(key, key, value, &mut values)?,
        }
    }
    Ok(values)
}

fn block(name: &str, value: &Yaml, keys: &[(&str, &'static str)], values: &mut Values) -> Result<(), String> {
    let entries = match value {
        Yaml::Null => return Ok(()),
        Yaml::Hash(entries) => entries,
        _ => return Err(format!("{name} is not a block of `name: value`")),
    };
    for (key, value) in entries {
        let key = key.as_str().ok_or_else(|| format!("{key:?} in {name} is not a name"))?;
        let Some((_, flag)) = keys.iter().find(|(known, _)| *known == key) else {
            let known: Vec<&str> = keys.iter().map(|(known, _)| *known).collect();
            return Err(format!("{name} has an unknown key {key:?}\n  what to do: use one of {}", known.join(", ")));
        };
        put(&format!("{name}.{key}"), flag, value, values)?;
    }
    Ok(())
}

fn put(shown: &str, name: &str, value: &Yaml, values: &mut Values) -> Result<(), String> {
    let Some(flag) = flags::find(name) else {
        let hint = flags::nearest(name).map(|nearest| format!("\n  what to do: did you mean {nearest}?"));
        return Err(format!("unknown key {shown:?}{}", hint.unwrap_or_default()));
    };
    let Some(value) = text(value).ok_or_else(|| format!("{shown} is neither a value nor a list of values"))? else {
        return Ok(());
    };
    // etcd's own sample file has empty values for what is not set.
    if value.is_empty() {
        return Ok(());
    }
    arguments::check(flag, &value, Source::File).map_err(|problem| format!("{shown}: {problem}"))?;
    values.insert(flag.name, Given { value, source: Source::File });
    Ok(())
}

/// A value as a flag would give it, lists with commas; `Some(None)` if there is none.
fn text(value: &Yaml) -> Option<Option<String>> {
    Some(Some(match value {
        Yaml::Null => return Some(None),
        Yaml::String(text) | Yaml::Real(text) => text.clone(),
        Yaml::Integer(number) => number.to_string(),
        Yaml::Boolean(truth) => truth.to_string(),
        Yaml::Array(items) => {
            let items = items.iter().map(|item| text(item).flatten()).collect::<Option<Vec<String>>>()?;
            items.join(",")
        }
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str, flag: &str) -> Option<String> {
        read(text).unwrap().get(flag).map(|given| given.value.clone())
    }

    /// The file is etcd's, with its blocks, lists and quoted numbers.
    #[test]
    fn the_keys_of_etcds_file_are_flags() {
        let text = "# sample\nname: 'm1'\ndata-dir:\nheartbeat-interval: 150\nlog-outputs: [stderr, stdout]\n\
                    auto-compaction-retention: \"1\"\nstrict-reconfig-check: false\ncors:\n\
                    client-transport-security:\n  cert-file: /c\n  client-cert-auth: true\n\
                    peer-transport-security:\n  cert-file: /p\n  allowed-cn: peer\ncipher-suites:\n  - A\n  - B\n";
        for (flag, expected) in [
            ("name", "m1"),
            ("heartbeat-interval", "150"),
            ("log-outputs", "stderr,stdout"),
            ("auto-compaction-retention", "1"),
            ("strict-reconfig-check", "false"),
            ("cert-file", "/c"),
            ("client-cert-auth", "true"),
            ("peer-cert-file", "/p"),
            ("peer-cert-allowed-cn", "peer"),
            ("cipher-suites", "A,B"),
        ] {
            assert_eq!(value(text, flag).as_deref(), Some(expected), "{flag}");
        }
        assert_eq!((value(text, "data-dir"), value(text, "cors")), (None, None));
        assert_eq!(read("").unwrap(), Values::new());
        assert_eq!(value("{\"name\": \"json\"}", "name").as_deref(), Some("json"));
    }

    /// A key that is ignored is a setting the operator believes to be in force.
    #[test]
    fn an_unknown_key_is_refused_by_its_name() {
        for (text, expected) in [
            ("listen-client-url: x", "did you mean listen-client-urls?"),
            ("xyzzy: 1", "unknown key \"xyzzy\""),
            ("client-transport-security:\n  cert: x", "client-transport-security has an unknown key \"cert\""),
            ("heartbeat-interval: soon", "heartbeat-interval: invalid value \"soon\""),
            ("name: {a: b}", "name is neither a value nor a list"),
            ("- a\n- b", "is not one list"),
            ("name: [", "cannot be understood"),
            ("config-file: other", "config-file cannot be given"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(expected), "{expected:?} is missing from: {problem}");
        }
    }
}
