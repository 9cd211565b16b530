//! DIGEST-MD5 (RFC 2831), the server's side, without `auth-int` and `auth-conf`. Pure.
//!
//! MD5 is broken for signatures; here it hides a password from who listens, no better than a fast hash can. Use it
//! within TLS, or for the sake of clients that know nothing else.

use md5::{Digest as _, Md5};
use ring::hmac;

/// ZooKeeper's: all its clients expect them, whatever the server is called.
const REALM: &str = "zk-sasl-md5";
const SERVICE: &str = "zookeeper/zk-sasl-md5";
/// The first answer to a challenge, and with us the only one.
const FIRST: &[u8] = b"00000001";
const QOP: &[u8] = b"auth";
/// More than there are kinds of.
const DIRECTIVES_MAX: usize = 32;

type Hash = [u8; 16];

/// What is known of a password: enough to check an answer, and to give one.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret {
    utf_8: Hash,
    /// The RFC wants names and passwords hashed in this encoding where it has all their letters. Java does so, others
    /// do not.
    latin_1: Hash,
}

impl Secret {
    pub(super) fn new(user: &str, password: &str) -> Secret {
        let hash = |user: &[u8], password: &[u8]| md5(&[user, b":", REALM.as_bytes(), b":", password]);
        let latin_1 = |text: &str| text.chars().map(|c| u8::try_from(c).ok()).collect::<Option<Vec<u8>>>();
        let utf_8 = hash(user.as_bytes(), password.as_bytes());
        let latin_1 = latin_1(user).zip(latin_1(password)).map_or(utf_8, |(user, password)| hash(&user, &password));
        Secret { utf_8, latin_1 }
    }
}

/// Who somebody has proven to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) user: String,
    /// Shows that we know the password as well.
    pub(super) token: String,
}

/// What is to be answered. Character by character what ZooKeeper sends.
pub(super) fn challenge(nonce: &str) -> String {
    format!("realm=\"{REALM}\",nonce=\"{nonce}\",charset=utf-8,algorithm=md5-sess")
}

/// Judges an answer to the challenge with `nonce`.
pub(super) fn judge<'a>(
    token: &[u8],
    nonce: &str,
    secret_of: impl FnOnce(&str) -> Option<&'a Secret>,
) -> Option<Proof> {
    let given = Directives::read(token)?;
    let user = given.user()?;
    let authorized_as = given.get("authzid").filter(|name| !name.is_empty());
    let is_asked_for = given.get("nonce")? == nonce.as_bytes()
        && given.get("nc")? == FIRST
        && given.get("realm")? == REALM.as_bytes()
        && given.get("digest-uri")?.eq_ignore_ascii_case(SERVICE.as_bytes())
        && given.get("qop").is_none_or(|qop| qop == QOP)
        && given.get("algorithm").is_none_or(|name| name == b"md5-sess")
        && authorized_as.is_none_or(|name| Some(name) == given.get("username"));
    if !is_asked_for {
        return None;
    }
    let session = Session {
        nonce: nonce.as_bytes(),
        client_nonce: given.get("cnonce").filter(|nonce| !nonce.is_empty())?,
        authorized_as,
        uri: given.get("digest-uri")?,
    };
    let response = given.get("response")?;
    // Somebody unknown costs the same as somebody known, or it would tell which names there are.
    let secret = secret_of(&user);
    let nobody = Secret { utf_8: Hash::default(), latin_1: Hash::default() };
    let hashes = secret.unwrap_or(&nobody);
    let mut right = None;
    for hash in [hashes.utf_8, hashes.latin_1] {
        if are_equal(session.response(&hash, b"AUTHENTICATE:").as_bytes(), response) {
            right = Some(hash);
        }
    }
    secret?;
    let token = format!("rspauth={}", session.response(&right?, b":"));
    Some(Proof { user, token })
}

/// In constant time: how much of an answer is right is nobody's business.
fn are_equal(expected: &[u8], given: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>());
    hmac::verify(&key, given, hmac::sign(&key, expected).as_ref()).is_ok()
}

/// What goes into every hash of one negotiation.
struct Session<'a> {
    nonce: &'a [u8],
    client_nonce: &'a [u8],
    authorized_as: Option<&'a [u8]>,
    uri: &'a [u8],
}

impl Session<'_> {
    /// The RFC's response-value; `direction` is what precedes the URI in its A2.
    fn response(&self, secret: &Hash, direction: &[u8]) -> String {
        let (colon, name) = match self.authorized_as {
            Some(name) => (&b":"[..], name),
            None => (&b""[..], &b""[..]),
        };
        let a1 = md5(&[secret, b":", self.nonce, b":", self.client_nonce, colon, name]);
        let a2 = md5(&[direction, self.uri]);
        let (a1, a2) = (hex(&a1), hex(&a2));
        let parts =
            [a1.as_bytes(), b":", self.nonce, b":", FIRST, b":", self.client_nonce, b":", QOP, b":", a2.as_bytes()];
        hex(&md5(&parts))
    }
}

fn md5(parts: &[&[u8]]) -> Hash {
    let mut hash = Md5::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `name=value` pairs. None comes twice, so that nobody can read another value than we do.
struct Directives(Vec<(String, Vec<u8>)>);

impl Directives {
    fn read(token: &[u8]) -> Option<Directives> {
        let mut found: Vec<(String, Vec<u8>)> = Vec::new();
        let mut rest = token.trim_ascii();
        while !rest.is_empty() {
            let equals = rest.iter().position(|byte| *byte == b'=')?;
            let name = std::str::from_utf8(rest[..equals].trim_ascii()).ok()?.to_ascii_lowercase();
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            let (value, after) = value(rest[equals + 1..].trim_ascii_start())?;
            if !is_name || found.iter().any(|(known, _)| *known == name) || found.len() == DIRECTIVES_MAX {
                return None;
            }
            found.push((name, value));
            rest = match after.trim_ascii_start() {
                [] => &[],
                [b',', more @ ..] => more.trim_ascii_start(),
                _ => return None,
            };
        }
        Some(Directives(found))
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }

    /// The name, in the encoding that the answer says it has.
    fn user(&self) -> Option<String> {
        let name = self.get("username").filter(|name| !name.is_empty())?;
        match self.get("charset") {
            None => Some(name.iter().copied().map(char::from).collect()),
            Some(b"utf-8") => String::from_utf8(name.to_vec()).ok(),
            Some(_) => None,
        }
    }
}

/// A value, quoted or not, and what follows it.
fn value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let [b'"', quoted @ ..] = text else {
        let end = text.iter().position(|byte| *byte == b',').unwrap_or(text.len());
        let bare = text[..end].trim_ascii_end();
        return (!bare.is_empty() && !bare.contains(&b'"')).then(|| (bare.to_vec(), &text[end..]));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value, &quoted[at + 1..])),
            b'\\' => value.push(*bytes.next()?.1),
            other => value.push(*other),
        }
    }
    None
}

/// What a client answers, for tests; `more` follows it.
#[cfg(test)]
pub(super) fn answer(user: &str, password: &str, nonce: &str, more: &str) -> Vec<u8> {
    let session =
        Session { nonce: nonce.as_bytes(), client_nonce: b"c0ffee", authorized_as: None, uri: SERVICE.as_bytes() };
    let response = session.response(&Secret::new(user, password).utf_8, b"AUTHENTICATE:");
    format!(
        "charset=utf-8,username=\"{user}\",realm=\"{REALM}\",nonce=\"{nonce}\",nc=00000001,cnonce=\"c0ffee\",\
         digest-uri=\"{SERVICE}\",response={response},qop=auth{more}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The example in section 4 of the RFC: clients of every kind compute this.
    #[test]
    fn the_digests_are_those_of_the_rfc() {
        let secret = md5(&[b"chris:elwood.innosoft.com:secret"]);
        let session = Session {
            nonce: b"OA6MG9tEQGm2hh",
            client_nonce: b"OA6MHXh6VqTrRk",
            authorized_as: None,
            uri: b"imap/elwood.innosoft.com",
        };
        assert_eq!(session.response(&secret, b"AUTHENTICATE:"), "d388dad90d4bbd760a152321f2143af7");
        assert_eq!(session.response(&secret, b":"), "ea40f60335c427b5527b84dbabcdfffd");
    }

    fn judged(token: &[u8]) -> Option<String> {
        let (ada, umlaut) = (Secret::new("ada", "secret"), Secret::new("jörg", "süß"));
        let secret_of = |name: &str| match name {
            "ada" => Some(&ada),
            "jörg" => Some(&umlaut),
            _ => None,
        };
        judge(token, "nonce", secret_of).map(|proof| proof.user)
    }

    /// Every part of an answer is there to bind it to this server, this challenge and this user. A real ZooKeeper
    /// refuses the same, but for the last.
    #[test]
    fn an_answer_to_anything_else_is_refused() {
        let right = String::from_utf8(answer("ada", "secret", "nonce", "")).unwrap();
        assert_eq!(judged(right.as_bytes()).as_deref(), Some("ada"));
        for (from, to) in [
            ("nc=00000001", "nc=00000002"),
            ("nonce=\"nonce\"", "nonce=\"other\""),
            ("realm=\"zk-sasl-md5\"", "realm=\"other\""),
            ("realm=\"zk-sasl-md5\",", ""),
            ("digest-uri=\"zookeeper/", "digest-uri=\"imap/"),
            ("qop=auth", "qop=auth-int"),
            ("qop=auth", "qop=auth,username=\"bob\""),
            ("username=\"ada\"", "username=\"bob\""),
            ("username=\"ada\"", "username=\"\""),
            ("username=\"ada\",", ""),
            ("charset=utf-8", "charset=latin-1"),
            ("cnonce=\"c0ffee\",", ""),
            ("response=", "response=0"),
            ("response=", "answer="),
            ("qop=auth", "qop=auth,authzid=\"bob\""),
        ] {
            let token = right.replace(from, to);
            assert_ne!(token, right, "{from}");
            assert_eq!(judged(token.as_bytes()), None, "{token}");
        }
        assert_eq!(judged(&answer("ada", "guess", "nonce", "")), None);
        assert_eq!(judged(&answer("eve", "", "nonce", "")), None);
        assert_eq!(
            judged(&answer("ada", "secret", "nonce", ",maxbuf=65536,future=\"a \\\" b\"")).as_deref(),
            Some("ada")
        );
    }

    /// Java's clients name the user a second time, and hash umlauts in another encoding than Python's do.
    #[test]
    fn answers_of_all_clients_are_understood() {
        let session = Session {
            nonce: b"nonce",
            client_nonce: b"c0ffee",
            authorized_as: Some("jörg".as_bytes()),
            uri: SERVICE.as_bytes(),
        };
        let secret = Secret::new("jörg", "süß");
        assert_ne!(secret.utf_8, secret.latin_1);
        for hash in [secret.utf_8, secret.latin_1] {
            let response = session.response(&hash, b"AUTHENTICATE:");
            let token = format!(
                "charset=utf-8, username=\"jörg\" ,realm=\"{REALM}\",nonce=\"nonce\",nc=00000001,cnonce=\"c0ffee\",\
                 digest-uri=\"{SERVICE}\",maxbuf=65536,response={response},qop=auth,authzid=\"jörg\""
            );
            assert_eq!(judged(token.as_bytes()).as_deref(), Some("jörg"));
        }
        let beyond = Secret::new("a", "日本");
        assert_eq!(beyond.utf_8, beyond.latin_1);
    }

    proptest! {
        /// Whatever a stranger sends, the server lives and lets nobody in.
        #[test]
        fn arbitrary_tokens_prove_nothing(token in prop::collection::vec(any::<u8>(), 0..300), pairs in "([a-z-]{1,9}=\"?[a-z\\\\\",=]{0,9}\"?,?){0,9}") {
            prop_assert_eq!(judged(&token), None);
            prop_assert_eq!(judged(pairs.as_bytes()), None);
        }
    }
}
