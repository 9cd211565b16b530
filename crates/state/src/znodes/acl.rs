//! Who may do what with a znode: lists of rights, made sense of once when they are set, and judged at every
//! request against the identities that came with it.

use tidelock_model::limits::ZNODE_ACL_MAX;
use tidelock_model::rights::{self, ip_prefix, is_everybody};
use tidelock_model::{AclEntry, Identity, ZnodeError};

pub(super) const READ: i32 = rights::READ;
pub(super) const WRITE: i32 = 2;
pub(super) const CREATE: i32 = 4;
pub(super) const DELETE: i32 = 8;
pub(super) const ADMIN: i32 = 16;
const ALL: i32 = READ | WRITE | CREATE | DELETE | ADMIN;

/// An entry for everybody.
pub(super) fn world(permissions: i32) -> AclEntry {
    AclEntry { permissions, who: Identity { scheme: "world".to_owned(), id: "anyone".to_owned() } }
}

/// The list as it is to be shown.
pub(super) fn shown(acl: Option<Vec<AclEntry>>) -> Vec<AclEntry> {
    acl.unwrap_or_else(|| vec![world(ALL)])
}

/// The list to store: checked, without repetitions, and with `auth` replaced by who asks. Nothing stands for
/// everybody everything.
pub(super) fn expand(acl: &[AclEntry], identities: &[Identity]) -> Result<Option<Vec<AclEntry>>, ZnodeError> {
    if is_open(acl) {
        return Ok(None);
    }
    let mut expanded = Vec::with_capacity(acl.len());
    for (at, entry) in acl.iter().enumerate() {
        if acl[..at].contains(entry) {
            continue;
        }
        if entry.who.scheme != "auth" {
            if !is_valid(&entry.who) {
                return Err(ZnodeError::InvalidAcl);
            }
            expanded.push(entry.clone());
            continue;
        }
        let before = expanded.len();
        let proven = identities.iter().filter(|who| is_proven(who));
        expanded.extend(proven.map(|who| AclEntry { permissions: entry.permissions, who: who.clone() }));
        if expanded.len() == before {
            return Err(ZnodeError::InvalidAcl);
        }
    }
    if expanded.is_empty() || expanded.len() > ZNODE_ACL_MAX {
        return Err(ZnodeError::InvalidAcl);
    }
    Ok((!is_open(&expanded)).then_some(expanded))
}

/// Whether a list lets everybody do everything, as nearly all do.
fn is_open(acl: &[AclEntry]) -> bool {
    matches!(acl, [entry] if is_everybody(&entry.who) && entry.permissions == ALL)
}

/// An address is no proof of who somebody is, and `super` is nobody in particular.
fn is_proven(who: &Identity) -> bool {
    !matches!(who.scheme.as_str(), "ip" | "super" | "world" | "auth")
}

fn is_valid(who: &Identity) -> bool {
    match who.scheme.as_str() {
        "world" => is_everybody(who),
        // A user and a digest. Colons behind them are overlooked, as ZooKeeper does.
        "digest" => matches!(who.id.trim_end_matches(':').split(':').collect::<Vec<_>>()[..], [_, _]),
        "ip" => ip_prefix(&who.id).is_some(),
        "x509" => who.id.contains('='),
        "sasl" => !who.id.is_empty() && is_principal(&who.id),
        _ => false,
    }
}

/// A name as Kerberos writes it, `service/host@realm`, or any at all without a realm.
fn is_principal(name: &str) -> bool {
    name.split_once('@').is_none_or(|(user, realm)| user.matches('/').count() <= 1 && !realm.contains(['@', '/']))
}

/// Whether the identities have any of these permissions.
pub(super) fn check(acl: Option<&[AclEntry]>, permissions: i32, identities: &[Identity]) -> Result<(), ZnodeError> {
    let allowed = acl.is_none_or(|acl| rights::allows(acl, permissions, identities));
    if allowed { Ok(()) } else { Err(ZnodeError::NoAuth) }
}

/// Hides digests: who may only read a list must not learn what to break a password with.
pub(super) fn mask(acl: &mut [AclEntry]) {
    for who in acl.iter_mut().map(|entry| &mut entry.who).filter(|who| who.scheme == "digest") {
        if let Some(colon) = who.id.find(':') {
            who.id.truncate(colon);
            who.id.push_str(":x");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(scheme: &str, id: &str) -> Identity {
        Identity { scheme: scheme.into(), id: id.into() }
    }
    fn entry(permissions: i32, scheme: &str, id: &str) -> AclEntry {
        AclEntry { permissions, who: who(scheme, id) }
    }

    /// A list that is taken and then matches nobody locks its znode for good.
    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let valid = [
            ("world", "anyone"),
            ("digest", "user:hash"),
            ("digest", ":hash"),
            ("digest", "user:hash:"),
            ("ip", "10.0.0.1"),
            ("ip", "10.0.0.0/8"),
            ("ip", "10.0.0.01"),
            ("ip", "10.0.0.0/0"),
            ("ip", "10.0.0.0/32"),
            ("ip", "fe80::1/64"),
            ("x509", "CN=a"),
            ("sasl", "a"),
            ("sasl", "a/b/c"),
            ("sasl", "a/b@C"),
        ];
        for (scheme, id) in valid {
            assert!(expand(&[entry(1, scheme, id)], &[]).is_ok(), "{scheme}:{id}");
        }
        let invalid = [
            ("world", "someone"),
            ("digest", "user"),
            ("digest", "user:"),
            ("digest", "a:b:c"),
            ("digest", ""),
            ("ip", ""),
            ("ip", "10.0.0"),
            ("ip", "10.0.0.256"),
            ("ip", "10.0.0.1/33"),
            ("ip", "10.0.0.1/-1"),
            ("ip", "10.0.0.1/"),
            ("ip", "fe80::1/129"),
            ("x509", ""),
            ("x509", "a"),
            ("sasl", ""),
            ("sasl", "a@b@c"),
            ("sasl", "a/b/c@d"),
            ("super", ""),
            ("unknown", "a"),
            ("auth", ""),
        ];
        for (scheme, id) in invalid {
            assert_eq!(expand(&[world(31), entry(1, scheme, id)], &[]), Err(ZnodeError::InvalidAcl), "{scheme}:{id}");
        }
        assert_eq!(expand(&[], &[]), Err(ZnodeError::InvalidAcl));
    }

    /// `auth` stands for who asks. An address proves nothing: without another identity the list is refused.
    #[test]
    fn auth_becomes_the_identities_that_were_proven() {
        let identities = [who("ip", "10.0.0.1"), who("digest", "a:x"), who("super", ""), who("sasl", "b")];
        let expected = vec![entry(3, "digest", "a:x"), entry(3, "sasl", "b"), world(1)];
        let list = [entry(3, "auth", "whatever"), world(1), world(1), entry(3, "auth", "whatever")];
        assert_eq!(expand(&list, &identities), Ok(Some(expected)));
        assert_eq!(expand(&list, &identities[..1]), Err(ZnodeError::InvalidAcl));
        let many: Vec<_> = (0..ZNODE_ACL_MAX as i32).map(|at| entry(at, "auth", "")).collect();
        assert_eq!(expand(&many, &identities), Err(ZnodeError::InvalidAcl), "it grows beyond what may be stored");
    }

    /// Most znodes are everybody's: that must cost no record, and be shown all the same.
    #[test]
    fn everybody_everything_is_stored_as_nothing() {
        assert_eq!(expand(&[world(31)], &[]), Ok(None));
        assert_eq!(shown(None), [world(31)]);
        assert_eq!(expand(&[world(30)], &[]), Ok(Some(vec![world(30)])));
    }

    #[test]
    fn a_permission_is_had_by_who_is_on_the_list_with_it() {
        let list = [entry(1, "digest", "a:x"), entry(2, "ip", "10.1.0.0/15"), entry(4, "world", "anyone")];
        let may = |permission, identities: &[Identity]| check(Some(&list), permission, identities).is_ok();
        assert!(may(CREATE, &[]) && !may(READ, &[]) && !may(ADMIN, &[]));
        assert!(may(READ, &[who("digest", "b:x"), who("digest", "a:x")]) && !may(WRITE, &[who("digest", "a:x")]));
        assert!(!may(READ, &[who("sasl", "a:x")]));
        assert!(may(WRITE, &[who("ip", "10.0.255.1")]) && !may(WRITE, &[who("ip", "10.2.0.1")]));
        assert!(!may(WRITE, &[who("ip", "::ffff:10.1.0.1")]) && !may(WRITE, &[who("ip", "nonsense")]));
        assert!(may(READ | ADMIN, &[who("digest", "a:x")]), "any of them is enough");
        assert!(may(ADMIN, &[who("super", "")]));
        let users = [entry(1, "sasl", "a"), entry(2, "x509", "CN=a")];
        let may = |permission, who: Identity| check(Some(&users), permission, &[who]).is_ok();
        assert!(may(READ, who("sasl", "super")) && !may(READ, who("sasl", "b")) && !may(READ, who("digest", "super")));
        assert!(!may(WRITE, who("x509", "super")) && may(WRITE, who("x509", "CN=a")));
        assert_eq!(check(Some(&[]), READ, &[]), Err(ZnodeError::NoAuth));
    }

    #[test]
    fn digests_are_masked_and_nothing_else() {
        let mut list = [entry(1, "digest", "a:b:c"), entry(1, "sasl", "a:b"), world(1)];
        mask(&mut list);
        assert_eq!(list, [entry(1, "digest", "a:x"), entry(1, "sasl", "a:b"), world(1)]);
    }
}
