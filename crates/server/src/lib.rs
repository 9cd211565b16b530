//! The one binary of Tidelock: a node, and the commands to work with one.
//!
//! Reading order: [`run`] picks a command from `cli`; `settings` and `config` turn what the user said
//! into something checked; `wiring` starts a node from it and is the only file that knows the node and
//! the faces; `commands` talk to running nodes over the network, like any client.

mod added;
mod admin;
mod admin_api;
mod admin_client;
mod admin_history;
mod announce;
mod auto_compaction;
mod cli;
mod commands;
mod config;
mod dev;
mod etcd_mode;
mod failure;
mod fate;
mod history_bound;
mod identity;
mod listeners;
mod log_output;
mod membership;
mod metrics;
mod output;
mod progress;
mod quota;
mod settings;
mod signals;
mod tls;
mod wiring;
mod zookeeper_admin;
mod zookeeper_mode;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command, ServeArgs};
use crate::config::Config;
use crate::failure::Failure;
use crate::listeners::Ports;
use crate::settings::Settings;

/// Runs the program with the arguments it was started with. Exit codes: 0 done, 1 it failed, 2 it was
/// asked for wrongly.
#[must_use]
pub fn run() -> ExitCode {
    // A symbolic link named `etcd` is all it takes to be started in etcd's place.
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    if words.next().is_some_and(|program| etcd_mode::is_meant(&program)) {
        return etcd_mode::run(&words.collect::<Vec<String>>());
    }
    if let Some(code) = commands::stand_in::run_if_meant(std::env::args_os().skip(1)) {
        return code;
    }
    let cli = Cli::parse();
    if let Some(Command::Etcd { words }) = &cli.command {
        return etcd_mode::run(words);
    }
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_silent() {
                eprintln!("{failure}");
            }
            failure.exit_code()
        }
    }
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        None => run_embedded(cli.data_dir, cli.zoo_cfg),
        Some(Command::Serve(args)) => serve(*args),
        Some(Command::Dev(args)) => dev::run(&args),
        Some(command) => commands::run(command),
    }
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    let (settings, config) = match (&args.config, &args.zoo_cfg) {
        (_, Some(path)) => zookeeper_mode::prepare(path, args.settings)?,
        (Some(path), None) => checked(args.settings.over(Settings::from_file(path)?))?,
        (None, None) => checked(args.settings)?,
    };
    if args.check {
        return print_settings(&settings, &config);
    }
    let options = wiring::Options {
        ports: Ports::AsConfigured,
        stop_when_stdin_ends: args.stop_when_stdin_ends,
        greet_single_node: false,
        end_by_signal: false,
    };
    wiring::run(&config, &options)
}

fn checked(settings: Settings) -> Result<(Settings, Config), Failure> {
    Ok((settings.clone(), Config::check(settings)?))
}

fn print_settings(settings: &Settings, config: &Config) -> Result<(), Failure> {
    let given =
        toml::to_string(settings).map_err(|error| Failure::new(format!("cannot print the settings: {error}")))?;
    let printer = output::Printer::new(cli::Output::Text);
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    printer.line("# These settings are in order; what is not listed has its default.")?;
    Ok(printer.line(given.trim_end())?)
}

/// A single node on loopback, for whoever typed `tidelock` to see what happens. `TIDELOCK_*` variables
/// count here too.
fn run_embedded(data_dir: Option<PathBuf>, zoo_cfg: Option<PathBuf>) -> Result<(), Failure> {
    let Some(Command::Serve(mut from_environment)) = Cli::parse_from(["tidelock", "serve"]).command else {
        unreachable!("`tidelock serve` is the serve command");
    };
    from_environment.zoo_cfg = zoo_cfg.or(from_environment.zoo_cfg);
    if from_environment.zoo_cfg.is_some() {
        return serve(*from_environment);
    }
    // The greeting is for a person; log lines between its lines would only be in the way.
    let quiet = Settings { log_level: Some("warn".into()), ..Settings::default() };
    let settings = Settings { data_dir, ..Settings::default() }.over(from_environment.settings).over(quiet);
    let options = wiring::Options {
        ports: Ports::FreeIfDefaultTaken,
        stop_when_stdin_ends: false,
        greet_single_node: true,
        end_by_signal: false,
    };
    let wants_zookeeper = settings.zookeeper_listen.as_deref() != Some("none");
    let wants_native = settings.native_listen.as_deref() != Some("none");
    let mut config = Config::check(settings)?;
    if wants_zookeeper {
        config.zookeeper.serve_by_default();
    }
    if wants_native {
        config.serve_native_by_default();
    }
    wiring::run(&config, &options)
}
