//! `ETCD_*` variables: every flag has one, in capitals and with underscores. A flag beats its variable. One
//! that belongs to no flag is warned about and otherwise ignored, as etcd does: environments are shared.

use super::arguments::{self, Given, Source, Values};
use super::flags;

/// Variables that etcd's own programs and images use beside those of the flags.
const NOT_FLAGS: &[&str] = &["ETCD_UNSUPPORTED_ARCH", "ETCD_VERIFY", "ETCD_VER", "ETCD_VERSION"];

/// What the environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    pub(crate) values: Values,
    pub(crate) warnings: Vec<String>,
}

/// Reads `variables`. An empty one counts as not set, as with etcd.
pub(crate) fn read(variables: impl IntoIterator<Item = (String, String)>) -> Result<Environment, String> {
    let mut found = Environment::default();
    let mut variables: Vec<(String, String)> = variables.into_iter().collect();
    variables.sort();
    for (variable, value) in variables {
        let Some(rest) = variable.strip_prefix("ETCD_") else { continue };
        if value.is_empty() || NOT_FLAGS.contains(&variable.as_str()) {
            continue;
        }
        let Some(flag) = flags::find(&rest.to_ascii_lowercase().replace('_', "-")) else {
            found.warnings.push(format!("unrecognized environment variable: {variable}={value}"));
            continue;
        };
        arguments::check(flag, &value, Source::Variable)
            .map_err(|problem| format!("invalid value {value:?} for {variable}: {problem}"))?;
        found.values.insert(flag.name, Given { value, source: Source::Variable });
    }
    Ok(found)
}

/// The variable of a flag.
pub(crate) fn variable(flag: &str) -> String {
    format!("ETCD_{}", flag.to_ascii_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Containers are configured by variables alone; all flags must be reachable that way.
    #[test]
    fn every_flag_has_a_variable() {
        for flag in flags::FLAGS {
            let value = match flag.kind {
                flags::Kind::Bool => "true",
                flags::Kind::Number => "7",
                flags::Kind::Duration => "7s",
                flags::Kind::Text => "x",
            };
            let found = read(variables(&[(variable(flag.name).as_str(), value)])).unwrap();
            assert_eq!(found.values.get(flag.name).map(|given| given.value.as_str()), Some(value), "{}", flag.name);
        }
    }

    /// A misspelt variable must be seen; one of another program must not keep the node from starting.
    #[test]
    fn an_unknown_variable_is_warned_about_and_an_empty_one_is_not_set() {
        let found = read(variables(&[("ETCD_NAEM", "a"), ("ETCD_NAME", ""), ("PATH", "x"), ("ETCD_VERIFY", "all")]));
        let found = found.unwrap();
        assert_eq!(found.warnings, ["unrecognized environment variable: ETCD_NAEM=a"]);
        assert!(found.values.is_empty());
    }

    #[test]
    fn a_variable_that_makes_no_sense_is_refused_by_its_name() {
        let problem = read(variables(&[("ETCD_HEARTBEAT_INTERVAL", "soon")])).unwrap_err();
        assert!(problem.contains("ETCD_HEARTBEAT_INTERVAL") && problem.contains("soon"), "{problem}");
    }
}
