//! Who a client proves to be with the credentials it sends.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest;
use tidelock_model::Identity;

/// What credentials came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The client is these, too.
    Of(Vec<Identity>),
    /// Wrong, or of a scheme that proves nothing.
    Failed,
}

/// Judges credentials. `super_digest` is the digest of who may do everything.
pub(crate) fn prove(scheme: &str, auth: &[u8], super_digest: Option<&str>) -> Proof {
    match scheme {
        "digest" => {
            let id = digest_id(auth);
            let mut identities = Vec::new();
            if super_digest == Some(&*id) {
                identities.push(Identity { scheme: "super".to_owned(), id: String::new() });
            }
            identities.push(Identity { scheme: "digest".to_owned(), id });
            Proof::Of(identities)
        }
        // A client's address is known without being told.
        "ip" => Proof::Of(Vec::new()),
        _ => Proof::Failed,
    }
}

/// `user:base64(sha1(user:password))`, of `user:password`. The algorithm is ZooKeeper's; lists of rights hold it.
pub(crate) fn digest_id(credentials: &[u8]) -> String {
    let hashed = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, credentials);
    let text = String::from_utf8_lossy(credentials);
    let user = text.split_once(':').map_or(&*text, |(user, _)| user);
    format!("{user}:{}", STANDARD.encode(hashed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value is the one in ZooKeeper's own documentation of superDigest: lists made there must hold here.
    #[test]
    fn digests_are_those_that_existing_lists_of_rights_hold() {
        assert_eq!(digest_id(b"super:admin"), "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=");
    }

    /// Whoever knows the configured password may do everything, and nobody else.
    #[test]
    fn only_the_right_password_makes_somebody_super() {
        let configured = Some("super:xQJmxLMiHGwaqBvst5y6rkB6HQs=");
        let schemes = |auth: &[u8]| match prove("digest", auth, configured) {
            Proof::Of(identities) => identities.into_iter().map(|identity| identity.scheme).collect::<Vec<_>>(),
            Proof::Failed => Vec::new(),
        };
        assert_eq!(
            (schemes(b"super:admin"), schemes(b"super:guess")),
            (vec!["super".to_owned(), "digest".to_owned()], vec!["digest".to_owned()])
        );
        assert_eq!(prove("kerberos", b"", None), Proof::Failed);
    }
}
