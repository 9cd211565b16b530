//! `tidelock certs`, as clap reads it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::commands::{parse_host, parse_name};

/// `tidelock certs`.
#[derive(Debug, Args)]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    pub(crate) action: CertsAction,
}

/// What to do with certificates.
#[derive(Debug, Subcommand)]
pub(crate) enum CertsAction {
    /// Make an authority, and certificates for nodes and clients
    Init(CertsInitArgs),
}

/// `tidelock certs init`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidelock certs init                                    for one machine, in ./certs
  tidelock certs init --host 10.0.0.1 --host 10.0.0.2 --host 10.0.0.3
  tidelock certs init --name a --name b --name c --host db.example --client alice

Every certificate of a node is for localhost, all hosts given and, with --name, the node's name. client-root is for
the user root. Nothing that exists is overwritten. A running node takes up certificates that are replaced.")]
pub(crate) struct CertsInitArgs {
    /// Where the files go; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub(crate) dir: PathBuf,

    /// A host name or address at which nodes are reached; may be repeated
    #[arg(long, value_name = "HOST", value_parser = parse_host, value_delimiter = ',')]
    pub(crate) host: Vec<String>,

    /// A node to make certificates of its own for; may be repeated [default: one pair for all]
    #[arg(long, value_name = "NODE", value_parser = parse_name, value_delimiter = ',')]
    pub(crate) name: Vec<String>,

    /// A user to make a certificate for, beside root; may be repeated
    #[arg(long, value_name = "USER", value_parser = parse_name, value_delimiter = ',')]
    pub(crate) client: Vec<String>,

    /// How many days the certificates are good for
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) days: u32,
}
