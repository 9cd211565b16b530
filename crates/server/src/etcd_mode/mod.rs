//! Taking etcd's place: started under the name `etcd`, or as `tidelock etcd`, the program takes etcd's flags,
//! `ETCD_*` variables and config file, and behaves towards whoever started it as etcd does.
//!
//! The way: `arguments`, `environment` or `config_file` collect what was given; `translate` turns it into
//! settings, by the table in `flags`; from there on it is a node like any other. What becomes of every flag
//! is told in docs/etcd-mode.md.
//!
//! Refused: a data directory that etcd itself has written. Its files are not read, and starting empty beside
//! them would look like the loss of all data.

mod arguments;
mod config_file;
pub(crate) mod duration;
mod environment;
mod flags;
mod help;
mod translate;

use std::path::Path;
use std::process::ExitCode;

use arguments::{Asked, Values};
pub(crate) use flags::nearest_of;
use translate::translate;

use crate::config::Config;
use crate::failure::Failure;
use crate::listeners::Ports;
use crate::settings::Settings;
use crate::wiring;

/// Exit code for a command line that cannot be read, as of every Go program.
const BAD_FLAGS: u8 = 2;

/// Whether the program was started under etcd's name.
pub(crate) fn is_meant(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "etcd")
}

/// Runs as etcd would with these arguments.
pub(crate) fn run(words: &[String]) -> ExitCode {
    let values = match arguments::read(words) {
        Ok(Asked::Help) => {
            print!("{}", help::text());
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Version) => {
            print!("{}", help::version());
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Run(values)) => values,
        Err(problem) => {
            eprintln!("{problem}\n{}", help::USAGE);
            return ExitCode::from(BAD_FLAGS);
        }
    };
    match prepare(values).and_then(|config| wiring::run(&config, &OPTIONS)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

const OPTIONS: wiring::Options = wiring::Options {
    ports: Ports::AsConfigured,
    stop_when_stdin_ends: false,
    greet_single_node: false,
    end_by_signal: true,
};

/// From what was given to a checked configuration.
fn prepare(flags: Values) -> Result<Config, Failure> {
    let (values, warnings) = collect(flags).map_err(Failure::usage)?;
    let translated = translate(&values).map_err(|problems| {
        let list: String = problems.iter().map(|problem| format!("\n  - {problem}")).collect();
        Failure::usage(format!("error verifying flags, nothing was started. See 'etcd --help'.{list}"))
    })?;
    let checked = Config::check(translated.settings.over(own_variables()));
    let mut config = checked.map_err(|failure| failure.reworded(in_etcds_words))?;
    refuse_etcds_data(&config.data_dir)?;
    config.warnings.extend(warnings);
    config.warnings.extend(translated.notes);
    Ok(config)
}

/// A config file counts alone; otherwise a flag beats its variable.
fn collect(flags: Values) -> Result<(Values, Vec<String>), String> {
    let environment = environment::read(std::env::vars())?;
    let mut values = environment.values;
    values.extend(flags);
    let Some(file) = values.get("config-file") else { return Ok((values, environment.warnings)) };
    let from_file = config_file::read_file(Path::new(&file.value))?;
    let ignored: Vec<&str> = values.keys().copied().filter(|name| *name != "config-file").collect();
    let mut warnings = Vec::new();
    if !ignored.is_empty() {
        let names = ignored.join(", ");
        warnings.push(format!("the config file counts alone; these flags or variables are ignored: {names}"));
    }
    Ok((from_file, warnings))
}

/// Our settings that have another name in etcd. Messages name what the operator wrote.
const RENAMED: &[(&str, &str)] = &[
    ("--auth-token-ttl-s", "--auth-token-ttl"),
    ("--catch-up-entries", "--snapshot-catchup-entries"),
    ("--client-listen", "--listen-client-urls"),
    ("--cluster-token", "--initial-cluster-token"),
    ("--election-ms", "--election-timeout"),
    ("--heartbeat-ms", "--heartbeat-interval"),
    ("--max-streams-per-connection", "--max-concurrent-streams"),
    ("--metrics-detail", "--metrics"),
    ("--metrics-listen", "--listen-metrics-urls"),
    ("--peer-advertise", "--initial-advertise-peer-urls"),
    ("--peer-listen", "--listen-peer-urls"),
    ("--ping-after-ms", "--grpc-keepalive-interval"),
    ("--ping-timeout-ms", "--grpc-keepalive-timeout"),
    ("--progress-notify-ms", "--watch-progress-notify-interval"),
    ("--quota-bytes", "--quota-backend-bytes"),
];

fn in_etcds_words(text: &str) -> String {
    RENAMED.iter().fold(text.to_owned(), |text, (ours, theirs)| text.replace(ours, theirs))
}

/// What has no counterpart in etcd can be set by `TIDELOCK_*` variables.
fn own_variables() -> Settings {
    use clap::Parser as _;
    let Some(crate::cli::Command::Serve(given)) = crate::cli::Cli::parse_from(["tidelock", "serve"]).command else {
        unreachable!("`tidelock serve` is the serve command");
    };
    let given = given.settings;
    Settings {
        admin_listen: given.admin_listen,
        native_listen: given.native_listen,
        request_timeout_ms: given.request_timeout_ms,
        max_proposals_waiting: given.max_proposals_waiting,
        max_watchers_per_stream: given.max_watchers_per_stream,
        worker_threads: given.worker_threads,
        ..Settings::default()
    }
}

/// etcd keeps everything under `member`.
fn refuse_etcds_data(data_dir: &Path) -> Result<(), Failure> {
    if !data_dir.join("member").join("wal").exists() && !data_dir.join("member").join("snap").exists() {
        return Ok(());
    }
    let dir = data_dir.display();
    Err(Failure::new(format!("{dir} holds the data of a real etcd, which is not read here; nothing was changed")).hint(
        "start etcd once more, take a backup with `etcdctl snapshot save`, bring it in with `tidelock snapshot restore`, \
         and use another --data-dir",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A symbolic link is all it takes to replace etcd in a unit file.
    #[test]
    fn the_name_of_the_program_decides() {
        assert!(is_meant("etcd") && is_meant("/usr/local/bin/etcd") && is_meant("./etcd"));
        assert!(!is_meant("tidelock") && !is_meant("/opt/etcd/tidelock") && !is_meant("etcdctl") && !is_meant(""));
    }

    /// Started over etcd's files, the node would come up empty and clients would believe their data gone.
    #[test]
    fn a_directory_that_etcd_has_written_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        refuse_etcds_data(dir.path()).unwrap();
        std::fs::create_dir_all(dir.path().join("member/snap")).unwrap();
        let failure = refuse_etcds_data(dir.path()).unwrap_err().to_string();
        assert!(failure.contains("data of a real etcd") && failure.contains("snapshot save"), "{failure}");
    }
}
