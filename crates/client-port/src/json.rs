//! JSON to protobuf and back, by descriptors: a new call needs no code here.
//!
//! Out: 64-bit numbers as strings, bytes as base64, enumerations by name, nothing that has its default. In: names as in
//! the proto files or in camelCase, numbers as numbers or strings, base64 of either alphabet with or without padding,
//! enumerations by name or number.

use bytes::Bytes;
use http::Request;
use http::header::{HOST, ORIGIN};
use prost::Message;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::error::Category;

/// What a gRPC method takes and gives.
#[derive(Clone, Debug)]
pub struct Shape {
    input: MessageDescriptor,
    output: MessageDescriptor,
    /// Many messages may come.
    pub takes_stream: bool,
    /// Many messages may go.
    pub gives_stream: bool,
}

/// Why a text is no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It ends too early.
    CutOff,
    /// Something in it, as told.
    Malformed(String),
}

impl Shape {
    /// Of the method `package.Service/Method`, if there is one.
    #[must_use]
    pub fn of(pool: &DescriptorPool, name: &str) -> Option<Shape> {
        let (service, method) = name.split_once('/')?;
        let service = pool.get_service_by_name(service)?;
        let method = service.methods().find(|candidate| candidate.name() == method)?;
        Some(Shape {
            input: method.input(),
            output: method.output(),
            takes_stream: method.is_client_streaming(),
            gives_stream: method.is_server_streaming(),
        })
    }

    /// One request, encoded. An empty text is an empty request; what follows the first value is ignored. Fields that
    /// nobody knows are passed over, unless they are to be refused.
    pub fn request_from_json(&self, json: &[u8], refuse_unknown: bool) -> Result<Bytes, Unreadable> {
        if json.iter().all(u8::is_ascii_whitespace) {
            return Ok(Bytes::new());
        }
        let mut reader = serde_json::Deserializer::from_slice(json);
        let options = DeserializeOptions::new().deny_unknown_fields(refuse_unknown);
        let message =
            DynamicMessage::deserialize_with_options(self.input.clone(), &mut reader, &options).map_err(|error| {
                match error.classify() {
                    Category::Eof => Unreadable::CutOff,
                    _ => Unreadable::Malformed(error.to_string()),
                }
            })?;
        Ok(message.encode_to_vec().into())
    }

    /// Appends one response, which was encoded by this server, as JSON: names as in the proto files, or in camelCase.
    pub fn response_to_json(&self, encoded: Bytes, proto_names: bool, out: &mut Vec<u8>) -> Result<(), String> {
        let message = DynamicMessage::decode(self.output.clone(), encoded)
            .map_err(|error| format!("an answer cannot be read: {error}"))?;
        let options = SerializeOptions::new().use_proto_field_name(proto_names).skip_default_fields(true);
        message
            .serialize_with_options(&mut serde_json::Serializer::new(out), &options)
            .map_err(|error| format!("an answer cannot be written: {error}"))
    }
}

/// Whether a web page of another origin asks for this: no page has any business at a client port. Browsers name the page's origin on every request that is not a plain visit; other programs do not, or
/// name the server itself.
#[must_use]
pub fn is_of_another_origin<B>(request: &Request<B>) -> bool {
    let Some(origin) = request.headers().get(ORIGIN) else { return false };
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(http::uri::Authority::as_str));
    // The scheme is not compared: TLS may end in front of us.
    let named = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    named.is_none() || named != host
}
