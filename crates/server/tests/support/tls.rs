//! Certificates for tests, and nodes that use them.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tidelock_tls::{Authority, Issued, Order, Use, Validity};

use super::Process;

/// An authority and a directory with what it issued.
pub struct Office {
    dir: TempDir,
    pub authority: Authority,
}

impl Office {
    /// A new one, whose certificate is in `ca.pem`.
    pub fn new(name: &str) -> Office {
        let authority = Authority::new(name, Validity::days(2)).unwrap();
        let office = Office { dir: tempfile::tempdir().unwrap(), authority };
        office.write("ca.pem", &office.authority.own().certificate);
        office
    }

    /// A file of it.
    pub fn file(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts a file in place at once, as careful tools do.
    pub fn write(&self, name: &str, text: &str) {
        let new = self.path(&format!("{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
    }

    /// Issues a certificate into `file.pem` and `file-key.pem`.
    pub fn issue(&self, file: &str, common_name: &str, usage: Use) -> Issued {
        self.issue_for(file, common_name, usage, Validity::days(1))
    }

    /// The same, with another validity.
    pub fn issue_for(&self, file: &str, common_name: &str, usage: Use, validity: Validity) -> Issued {
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let issued = self.authority.issue(&Order { common_name, hosts: &hosts, usage, validity }).unwrap();
        // The certificate comes last: its key is there already.
        self.write(&format!("{file}-key.pem"), &issued.key);
        self.write(&format!("{file}.pem"), &issued.certificate);
        issued
    }

    /// `--cert-file` and `--key-file`, or their kin of peers.
    pub fn shown(&self, prefix: &str, file: &str) -> Vec<String> {
        vec![
            format!("--{prefix}cert-file"),
            self.file(&format!("{file}.pem")),
            format!("--{prefix}key-file"),
            self.file(&format!("{file}-key.pem")),
        ]
    }

    /// What our commands, and etcdctl, need to be let in with `file`.
    pub fn connecting(&self, file: &str) -> Vec<String> {
        ["--cacert", &self.file("ca.pem")]
            .into_iter()
            .chain(["--cert", &self.file(&format!("{file}.pem"))])
            .chain(["--key", &self.file(&format!("{file}-key.pem"))])
            .map(str::to_owned)
            .collect()
    }
}

/// A time that is over.
pub fn ended() -> Validity {
    let hour = Duration::from_secs(3600);
    Validity { from: SystemTime::now() - 2 * hour, until: SystemTime::now() - hour }
}

impl Process {
    /// Starts it with these arguments too.
    pub fn add_arguments(&mut self, more: &[String]) {
        self.arguments.extend_from_slice(more);
    }

    /// Where clients reach it with TLS.
    pub fn secure_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.client_port)
    }
}
