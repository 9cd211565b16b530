//! How to reach nodes and as whom: the same flags and variables for every command that talks to one.

use std::path::PathBuf;

use clap::Args;

/// Certificates, user and patience.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectionArgs {
    /// Authorities to trust, PEM: the nodes' certificates must be of one of them. For https:// addresses
    #[arg(long, env = "TIDELOCK_CACERT", value_name = "FILE", global = true, help_heading = "Connection")]
    pub(crate) cacert: Option<PathBuf>,

    /// Certificate to show to nodes that demand one, PEM
    #[arg(long = "cert", env = "TIDELOCK_CERT", value_name = "FILE", global = true, help_heading = "Connection")]
    pub(crate) cert_file: Option<PathBuf>,

    /// Private key of --cert, PEM
    #[arg(long = "key", env = "TIDELOCK_KEY", value_name = "FILE", global = true, help_heading = "Connection")]
    pub(crate) key_file: Option<PathBuf>,

    /// User to come in as, if the cluster has users
    #[arg(long, env = "TIDELOCK_USER", value_name = "NAME[:PASSWORD]", global = true, help_heading = "Connection")]
    pub(crate) user: Option<String>,

    /// Password of --user, better given by the variable than on the command line
    #[arg(
        long,
        env = "TIDELOCK_PASSWORD",
        hide_env_values = true,
        value_name = "TEXT",
        global = true,
        help_heading = "Connection"
    )]
    pub(crate) password: Option<String>,

    /// Talk to nodes whoever they are; for trying things out only
    #[arg(
        long,
        env = "TIDELOCK_INSECURE_SKIP_TLS_VERIFY",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        default_value_t = false,
        hide_default_value = true,
        global = true,
        help_heading = "Connection"
    )]
    pub(crate) insecure_skip_tls_verify: bool,

    /// How long to wait for an answer, in milliseconds
    #[arg(
        long,
        env = "TIDELOCK_TIMEOUT_MS",
        value_name = "MS",
        default_value_t = 5_000,
        global = true,
        help_heading = "Connection"
    )]
    pub(crate) timeout_ms: u64,
}
