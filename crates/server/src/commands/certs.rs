//! `tidelock certs init`: an authority of one's own and certificates of it, to try TLS with or to run a small
//! cluster on. Nothing is sent anywhere; nothing that exists is touched.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tidelock_tls::{Authority, Issued, MakeError, Order, Use, Validity};

use crate::announce::program;
use crate::cli::{CertsAction, CertsArgs, CertsInitArgs};
use crate::failure::Failure;
use crate::output::Printer;

/// How long the authority is good for, at least: what it issues must not outlive it.
const AUTHORITY_DAYS_MIN: u32 = 3650;
/// Hosts that certificates are always for, so that they can be tried on one machine.
const OWN_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The user that may do everything once authentication is on.
const ROOT: &str = "root";
/// Mode of keys: for their owner alone.
const KEY_MODE: u32 = 0o600;
/// Mode of everything that may be shown.
const PUBLIC_MODE: u32 = 0o644;

/// A file that is to be written.
struct Planned {
    path: PathBuf,
    text: String,
    mode: u32,
}

/// Does what was asked for.
pub(crate) fn certs(args: &CertsArgs) -> Result<(), Failure> {
    match &args.action {
        CertsAction::Init(args) => init(args),
    }
}

fn init(args: &CertsInitArgs) -> Result<(), Failure> {
    let plan = plan(args)?;
    let taken: Vec<String> =
        plan.iter().filter(|file| file.path.exists()).map(|file| file.path.display().to_string()).collect();
    if !taken.is_empty() {
        return Err(Failure::usage(format!("{} exist already; nothing was written", taken.join(", ")))
            .hint("name another directory with --dir, or move these away: a key that is overwritten is gone"));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(&args.dir).map_err(|error| {
        Failure::new(format!("cannot create {}: {error}", args.dir.display()))
            .hint("name a directory you may write to with --dir")
    })?;
    for file in &plan {
        write_new(file).map_err(|error| Failure::new(format!("cannot write {}: {error}", file.path.display())))?;
    }
    tell(args, &plan)
}

fn plan(args: &CertsInitArgs) -> Result<Vec<Planned>, Failure> {
    let validity = Validity::days(args.days);
    // Authorities of one name and different keys are hard to tell apart when something is refused.
    let name = format!("Tidelock CA {:08x}", rand::random::<u32>());
    let authority = Authority::new(&name, Validity::days(args.days.max(AUTHORITY_DAYS_MIN)))
        .map_err(|error| cannot_make(&error))?;
    let mut plan = Vec::new();
    plan_pair(&mut plan, &args.dir, "ca", authority.own());

    let hosts: Vec<String> = OWN_HOSTS.into_iter().map(str::to_owned).chain(args.host.iter().cloned()).collect();
    let nodes: Vec<Option<&str>> =
        if args.name.is_empty() { vec![None] } else { args.name.iter().map(|name| Some(name.as_str())).collect() };
    for node in nodes {
        let mut hosts = hosts.clone();
        hosts.extend(node.map(str::to_owned));
        hosts.sort();
        hosts.dedup();
        for (kind, usage) in [("server", Use::Server), ("peer", Use::Peer)] {
            let order = Order { common_name: node.unwrap_or("tidelock"), hosts: &hosts, usage, validity };
            let file = node.map_or_else(|| kind.to_owned(), |node| format!("{kind}-{node}"));
            plan_pair(&mut plan, &args.dir, &file, &authority.issue(&order).map_err(|error| cannot_make(&error))?);
        }
    }
    let mut users: Vec<&str> = std::iter::once(ROOT).chain(args.client.iter().map(String::as_str)).collect();
    users.sort_unstable();
    users.dedup();
    for user in users {
        let order = Order { common_name: user, hosts: &[], usage: Use::Client, validity };
        plan_pair(
            &mut plan,
            &args.dir,
            &format!("client-{user}"),
            &authority.issue(&order).map_err(|error| cannot_make(&error))?,
        );
    }
    Ok(plan)
}

fn plan_pair(plan: &mut Vec<Planned>, dir: &Path, name: &str, issued: &Issued) {
    let certificate =
        Planned { path: dir.join(format!("{name}.pem")), text: issued.certificate.clone(), mode: PUBLIC_MODE };
    let key = Planned { path: dir.join(format!("{name}-key.pem")), text: issued.key.clone(), mode: KEY_MODE };
    plan.extend([certificate, key]);
}

fn cannot_make(error: &MakeError) -> Failure {
    Failure::usage(error.to_string()).hint("give --host host names or IP addresses, without a port")
}

fn write_new(file: &Planned) -> std::io::Result<()> {
    // Created anew or not at all, with its mode from the first moment on.
    let mut out = File::options().write(true).create_new(true).mode(file.mode).open(&file.path)?;
    out.write_all(file.text.as_bytes())?;
    out.sync_all()
}

fn tell(args: &CertsInitArgs, plan: &[Planned]) -> Result<(), Failure> {
    let printer = Printer::new(crate::cli::Output::Text);
    let program = program();
    let dir = args.dir.display();
    let files: Vec<String> = plan.iter().map(|file| format!("  {}", file.path.display())).collect();
    let node = args.name.first().map_or_else(String::new, |name| format!("-{name}"));
    let name = args.name.first().map_or_else(String::new, |name| format!(" --name {name}"));
    let connect =
        format!("--cacert {dir}/ca.pem \\\n      --cert {dir}/client-root.pem --key {dir}/client-root-key.pem");
    let text = format!(
        "Made, good for {days} days:
{files}

Start a node that speaks TLS only, and knows its clients by their certificates:
  {program} serve{name} \\
      --cert-file {dir}/server{node}.pem --key-file {dir}/server{node}-key.pem \\
      --client-cert-auth --trusted-ca-file {dir}/ca.pem \\
      --peer-cert-file {dir}/peer{node}.pem --peer-key-file {dir}/peer{node}-key.pem \\
      --peer-trusted-ca-file {dir}/ca.pem

Then, in another terminal:
  {program} put greeting hello --endpoints https://127.0.0.1:2379 {connect}
  {program} get greeting --endpoints https://127.0.0.1:2379 {connect}
  etcdctl get greeting --endpoints https://127.0.0.1:2379 {connect}

Whoever has {dir}/ca-key.pem can make certificates for anybody: nodes do not need it, keep it elsewhere.",
        days = args.days,
        files = files.join("\n"),
    );
    Ok(printer.line(&text)?)
}

/// A host for `--host`: a name or an address, nothing with a port.
pub(crate) fn parse_host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let is_name = |name: &str| {
        let name = name.strip_prefix("*.").unwrap_or(name);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    if bare.parse::<IpAddr>().is_ok() || is_name(bare) {
        Ok(bare.to_owned())
    } else {
        Err("give a host name or an IP address, without a port".to_owned())
    }
}

/// A name for `--name` or `--client`, which becomes part of a file's name.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    if !text.is_empty()
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    {
        Ok(text.to_owned())
    } else {
        Err("use letters, digits, '.', '_' and '-'".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with a port in a certificate matches nothing, and the mistake shows only when somebody connects.
    #[test]
    fn hosts_and_names_are_told_from_nonsense() {
        for good in ["10.0.0.1", "::1", "[::1]", "node-a.example", "*.example"] {
            assert!(parse_host(good).is_ok(), "{good}");
        }
        for bad in ["", "10.0.0.1:2379", "https://a", "a b"] {
            assert!(parse_host(bad).is_err(), "{bad}");
        }
        for bad in ["", "../x", "a/b", ".hidden"] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }
}
