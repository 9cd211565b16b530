//! The check of where the native API is served.

use std::net::SocketAddr;

use super::{Checks, Config, Listen};

/// The port beside that of administration.
const NATIVE_LISTEN_DEFAULT: &str = "127.0.0.1:7481";

impl Checks {
    /// Only where it was asked for: a port that opens unasked clashes with the next node's on the same machine.
    pub(super) fn native(&mut self, given: Option<&str>) -> Option<Listen> {
        let given = given.filter(|text| *text != "none");
        given.map(|text| self.listen_with("native-listen", Some(text), NATIVE_LISTEN_DEFAULT, self.clients))
    }
}

impl Config {
    /// Serves the native API at its usual port, or a free one if that is taken.
    pub(crate) fn serve_native_by_default(&mut self) {
        let address = SocketAddr::from(([127, 0, 0, 1], 7481));
        self.native_listen.get_or_insert(Listen { address, is_default: true, tls: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn check(toml: &str) -> Result<Config, String> {
        Config::check(Settings::from_toml(toml).unwrap()).map_err(|failure| failure.to_string())
    }

    /// Whoever reaches the port can take every lock: it must not be open to others by mistake.
    #[test]
    fn the_native_api_is_served_only_where_it_was_asked_for() {
        assert_eq!(check("").unwrap().native_listen, None);
        assert_eq!(check("native-listen = 'none'").unwrap().native_listen, None);
        let listen = check("native-listen = '127.0.0.1:7481'").unwrap().native_listen.unwrap();
        assert_eq!((listen.address.to_string().as_str(), listen.tls), (NATIVE_LISTEN_DEFAULT, false));
        assert!(check("native-listen = '0.0.0.0:7481'").unwrap_err().contains("--native-listen"));
        assert!(check("native-listen = '127.0.0.1:2379'").unwrap_err().contains("already used"));
        let mut config = check("").unwrap();
        config.serve_native_by_default();
        assert_eq!(config.native_listen.unwrap().address.to_string(), NATIVE_LISTEN_DEFAULT);
    }
}
