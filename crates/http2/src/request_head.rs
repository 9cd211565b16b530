//! What a request says of itself before its body, checked as far as HTTP/2 asks for (RFC 9113, section 8.2 and 8.3).

use std::any::Any;
use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;

use crate::hpack::Field;

/// What a field takes beside its text, about: here, and in the map that most services make of a head.
const FIELD_BYTES: usize = 2 * size_of::<Field>();

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// `POST` for calls.
    pub method: Bytes,
    /// Where to; calls have `/service/method`.
    pub path: Bytes,
    /// `http` or `https`.
    pub scheme: Bytes,
    /// Whom the client believes to speak to, in whatever form: old clients put whole URLs here.
    pub authority: Option<Bytes>,
    /// How many bytes its body has, if it says so.
    pub content_length: Option<u64>,
    /// Everything else.
    pub fields: Vec<Field>,
    size: usize,
    digest: Digest,
}

/// What a service made of a head. Says nothing about the head itself: heads are alike without it.
#[derive(Default)]
struct Digest(OnceLock<Box<dyn Any + Send + Sync>>);

impl Clone for Digest {
    fn clone(&self) -> Digest {
        Digest::default()
    }
}

impl PartialEq for Digest {
    fn eq(&self, _: &Digest) -> bool {
        true
    }
}

impl Eq for Digest {}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest")
    }
}

/// The request is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl RequestHead {
    /// The value of the first field of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.fields.iter().find(|field| field.name == name.as_bytes()).map(|field| &field.value)
    }

    /// What `make` makes of this head: made once, since the same head comes with many requests. Nothing if something of
    /// another kind was made of it before.
    pub fn digest<T: Send + Sync + 'static>(&self, make: impl FnOnce(&RequestHead) -> T) -> Option<&T> {
        self.digest.0.get_or_init(|| Box::new(make(self))).downcast_ref()
    }

    /// About how much memory it takes. A byte on the wire can name a field that is far larger.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The request in the terms of the `http` crate; nothing if it has no place in them.
    #[must_use]
    pub fn to_http<B>(&self, body: B) -> Option<http::Request<B>> {
        let mut request = http::Request::new(body);
        *request.version_mut() = http::Version::HTTP_2;
        *request.method_mut() = http::Method::from_bytes(&self.method).ok()?;
        // The path alone: some clients send an authority that is none.
        *request.uri_mut() = http::Uri::try_from(&self.path[..]).ok()?;
        let headers = request.headers_mut();
        if let Some(host) = self.authority.as_ref().and_then(|host| http::HeaderValue::from_bytes(host).ok()) {
            headers.insert(http::header::HOST, host);
        }
        for field in &self.fields {
            let name = http::HeaderName::from_bytes(&field.name).ok()?;
            headers.append(name, http::HeaderValue::from_bytes(&field.value).ok()?);
        }
        Some(request)
    }

    pub(crate) fn of(fields: Vec<Field>) -> Result<RequestHead, Malformed> {
        let (mut method, mut path, mut scheme, mut authority) = (None, None, None, None);
        let size = fields.iter().map(|field| FIELD_BYTES + field.name.len() + field.value.len()).sum();
        let own = fields.iter().take_while(|field| field.name.first() == Some(&b':')).count();
        for Field { name, value } in &fields[..own] {
            let place = match &name[..] {
                b":method" => &mut method,
                b":path" => &mut path,
                b":scheme" => &mut scheme,
                b":authority" => &mut authority,
                _ => return Err(Malformed),
            };
            if place.replace(value.clone()).is_some() {
                return Err(Malformed);
            }
        }
        let mut fields = fields;
        fields.drain(..own);
        fields.iter().try_for_each(check_field)?;
        let path = path.filter(|path| !path.is_empty()).ok_or(Malformed)?;
        let content_length = content_length(&fields)?;
        let (method, scheme) = (method.ok_or(Malformed)?, scheme.ok_or(Malformed)?);
        Ok(RequestHead { method, path, scheme, authority, content_length, fields, size, digest: Digest::default() })
    }
}

/// What all fields about it agree on.
fn content_length(fields: &[Field]) -> Result<Option<u64>, Malformed> {
    let mut length = None;
    for field in fields.iter().filter(|field| field.name == b"content-length"[..]) {
        let digits =
            std::str::from_utf8(&field.value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let said: u64 = digits.and_then(|digits| digits.parse().ok()).ok_or(Malformed)?;
        if length.replace(said).is_some_and(|before| before != said) {
            return Err(Malformed);
        }
    }
    Ok(length)
}

/// Trailers have no fields of the protocol's own.
pub(crate) fn check_trailers(fields: &[Field]) -> Result<(), Malformed> {
    fields.iter().try_for_each(check_field)
}

fn check_field(field: &Field) -> Result<(), Malformed> {
    let bad = |byte: &u8| matches!(byte, 0..=0x20 | b'A'..=b'Z' | 0x7f.. | b':');
    if field.name.is_empty() || field.name.iter().any(bad) {
        return Err(Malformed);
    }
    if field.value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
        return Err(Malformed);
    }
    match &field.name[..] {
        // Of HTTP/1 alone.
        b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => Err(Malformed),
        b"te" if field.value != b"trailers"[..] => Err(Malformed),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&str, &str)]) -> Result<RequestHead, Malformed> {
        let field = |(name, value): &(&str, &str)| Field {
            name: Bytes::copy_from_slice(name.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
        };
        RequestHead::of(fields.iter().map(field).collect())
    }

    const CALL: [(&str, &str); 3] = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C")];

    #[test]
    fn a_call_is_read() {
        let mut fields = CALL.to_vec();
        fields.extend([(":authority", "http://h:1"), ("content-type", "application/grpc"), ("te", "trailers")]);
        let head = head(&fields).unwrap();
        assert_eq!((&head.method[..], &head.path[..]), (&b"POST"[..], &b"/a.B/C"[..]));
        assert_eq!(head.get("content-type").unwrap(), "application/grpc");
        assert_eq!(head.get("nothing"), None);
    }

    /// A service looks closely at a head once, however many requests come with it.
    #[test]
    fn what_is_made_of_a_head_is_kept_with_it() {
        let head = head(&CALL).unwrap();
        assert_eq!(head.digest(|head| head.path.len()), Some(&6));
        assert_eq!(head.digest(|_| 0_usize), Some(&6));
        assert_eq!(head.digest(|_| "of another kind"), None);
        assert_eq!(head.clone().digest(|_| 0_usize), Some(&0));
    }

    /// What a careless proxy passes on could be taken apart differently by whoever stands behind it.
    #[test]
    fn malformed_requests_are_refused() {
        for left_out in 0..3 {
            let mut fields = CALL.to_vec();
            fields.remove(left_out);
            assert!(head(&fields).is_err());
        }
        let extra = [
            (":path", "/again"),
            (":status", "200"),
            ("Upper", "x"),
            ("", "x"),
            ("a b", "x"),
            ("a", "x\r\ny"),
            ("connection", "close"),
            ("te", "gzip"),
            ("content-length", "+1"),
            ("content-length", ""),
        ];
        for (name, value) in extra {
            let mut fields = CALL.to_vec();
            fields.push((name, value));
            assert!(head(&fields).is_err(), "{name:?}: {value:?}");
        }
        assert!(head(&[CALL[0], CALL[1], ("x", "y"), CALL[2]]).is_err(), "its own fields come first");
        assert!(head(&[CALL[0], CALL[1], (":path", "")]).is_err());
    }
}
