//! How names and addresses are spelt.

use tidelock_model::limits::MEMBER_TEXT_BYTES_MAX;

/// Whether a node can be called that.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() {
        Err("has an empty name".into())
    } else if name.len() > MEMBER_TEXT_BYTES_MAX.min(255) {
        Err("has a name longer than 255 bytes".into())
    } else if !name.chars().all(allowed) {
        Err("has characters in its name that are not letters, digits, '.', '_' or '-'".into())
    } else {
        Ok(())
    }
}

/// Whether `text` is `host:port`; port 0 only where the system may choose one.
pub(crate) fn check_host_port(text: &str, port_zero_allowed: bool) -> Result<(), String> {
    let Some((host, port)) = text.rsplit_once(':') else { return Err("has no port".into()) };
    if host.is_empty() {
        return Err("has no host".into());
    }
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if !bracketed && (host.contains(':') || host.contains('/') || host.contains(char::is_whitespace)) {
        return Err("is not host:port (put IPv6 addresses in brackets)".into());
    }
    match port.parse::<u16>() {
        Ok(0) if !port_zero_allowed => Err("has port 0, which nobody can dial".into()),
        Ok(_) => Ok(()),
        Err(_) => Err(format!("has no port number but {port:?}")),
    }
}
