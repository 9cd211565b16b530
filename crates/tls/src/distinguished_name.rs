//! Whom a certificate is about, in one line. ZooKeeper's lists of rights hold that line (`x509:CN=a,O=b`), so it is
//! written as the Java class that ZooKeeper asks for it writes it: RFC 2253, with that class's choice of names for
//! attributes and of characters to escape.

use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::{Any, Tag, ToDer};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Attributes that RFC 2253 has a name for. All others are written as numbers, and their values as hex.
const NAMED: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
];
/// What stands behind a backslash.
const ESCAPED: &[char] = &[',', '=', '+', '<', '>', '#', ';', '"', '\\'];

/// The subject of a certificate, the last of its parts first; `None` if there is none, or it cannot be read.
#[must_use]
pub fn distinguished_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let mut parts = Vec::new();
    for part in parsed.subject().iter_rdn() {
        let attributes: Option<Vec<String>> = part
            .iter()
            .map(|attribute| written(&attribute.attr_type().to_id_string(), attribute.attr_value()))
            .collect();
        parts.push(attributes?.join("+"));
    }
    parts.reverse();
    (!parts.is_empty()).then(|| parts.join(","))
}

fn written(kind: &str, value: &Any<'_>) -> Option<String> {
    let name = NAMED.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name);
    match name {
        Some(name) if is_text(value.tag()) => Some(format!("{name}={}", escaped(&String::from_utf8_lossy(value.data)))),
        _ => {
            let hex: String = value.to_der_vec_raw().ok()?.iter().map(|byte| format!("{byte:02x}")).collect();
            Some(format!("{}=#{hex}", name.unwrap_or(kind)))
        }
    }
}

fn is_text(tag: Tag) -> bool {
    matches!(
        tag,
        Tag::Utf8String
            | Tag::PrintableString
            | Tag::Ia5String
            | Tag::T61String
            | Tag::BmpString
            | Tag::UniversalString
            | Tag::GeneralString
    )
}

fn escaped(text: &str) -> String {
    let is_blank = |c: char| c == ' ' || c == '\r';
    let (first, end) = (text.len() - text.trim_start_matches(is_blank).len(), text.trim_end_matches(is_blank).len());
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        match c {
            '\0' => out.push_str("\\00"),
            c if ESCAPED.contains(&c) || at < first || at >= end => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn name(parts: &[(DnType, &str)]) -> Option<String> {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        let mut name = DistinguishedName::new();
        for (kind, value) in parts {
            let value = match kind {
                DnType::CountryName => DnValue::PrintableString((*value).try_into().unwrap()),
                DnType::CustomDnType(oid) if oid.last() == Some(&1) && oid[0] == 1 => {
                    DnValue::Ia5String((*value).try_into().unwrap())
                }
                _ => DnValue::Utf8String((*value).to_owned()),
            };
            name.push(kind.clone(), value);
        }
        params.distinguished_name = name;
        distinguished_name(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der())
    }

    /// A list of rights made at a ZooKeeper must fit the same client here, so every character counts. What is expected
    /// was printed by Java 17's X500Principal.getName() for certificates with these subjects.
    #[test]
    fn subjects_are_written_as_java_writes_them() {
        use DnType::{
            CommonName, CountryName, CustomDnType, LocalityName, OrganizationName, OrganizationalUnitName,
            StateOrProvinceName,
        };
        let custom = |oid: &[u64]| CustomDnType(oid.to_vec());
        let component = || custom(&[0, 9, 2342, 19_200_300, 100, 1, 25]);
        for (parts, expected) in [
            (
                vec![
                    (CountryName, "DE"),
                    (StateOrProvinceName, "Berlin"),
                    (LocalityName, "Mitte"),
                    (OrganizationName, "A, B + C"),
                    (OrganizationalUnitName, "x=y"),
                    (CommonName, "client"),
                ],
                "CN=client,OU=x\\=y,O=A\\, B \\+ C,L=Mitte,ST=Berlin,C=DE",
            ),
            (vec![(CommonName, " lead and trail ")], "CN=\\ lead and trail\\ "),
            (vec![(CommonName, "#hash;q\"b\\s<>")], "CN=\\#hash\\;q\\\"b\\\\s\\<\\>"),
            (
                vec![(component(), "org"), (custom(&[0, 9, 2342, 19_200_300, 100, 1, 1]), "u1"), (CommonName, "a")],
                "CN=a,UID=u1,DC=org",
            ),
            (
                vec![(CommonName, "Jörg Ünï €"), (custom(&[1, 2, 840, 113_549, 1, 9, 1]), "a@b.c")],
                "1.2.840.113549.1.9.1=#16056140622e63,CN=Jörg Ünï €",
            ),
            (
                vec![(custom(&[2, 5, 4, 9]), "Some St"), (custom(&[2, 5, 4, 42]), "g"), (CommonName, "x")],
                "CN=x,2.5.4.42=#0c0167,STREET=Some St",
            ),
            (vec![(CommonName, "a*b_c@d!e")], "CN=a*b_c@d!e"),
        ] {
            assert_eq!(name(&parts).as_deref(), Some(expected));
        }
        assert_eq!(name(&[]), None, "nobody is nobody's name");
    }
}
