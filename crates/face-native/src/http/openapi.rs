//! The OpenAPI document, made of the descriptors and the table of paths: it cannot say anything else than what is served.

use std::collections::{BTreeMap, HashMap};

use prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

use super::routes::{BESIDE, Route};
use crate::unary::SERVICE;

const PACKAGE: &str = "tidelock.v1";

/// What the proto says about each thing, by where it stands.
struct Comments(HashMap<(String, Vec<i32>), String>);

impl Comments {
    fn of(pool: &DescriptorPool) -> Comments {
        let mut comments = HashMap::new();
        for file in pool.files() {
            let proto = file.file_descriptor_proto();
            for location in proto.source_code_info.iter().flat_map(|info| &info.location) {
                if let Some(text) = &location.leading_comments {
                    let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
                    comments.insert((file.name().to_owned(), location.path.clone()), text.trim().to_owned());
                }
            }
        }
        Comments(comments)
    }

    /// Adds what is said, if anything is. Beside a reference nothing else is looked at by older readers, which is no harm.
    fn describe(&self, mut schema: Value, file: &str, path: &[i32]) -> Value {
        if let Some(text) = self.0.get(&(file.to_owned(), path.to_vec())) {
            schema["description"] = text.as_str().into();
        }
        schema
    }
}

/// The document.
pub(super) fn document(pool: &DescriptorPool, routes: &BTreeMap<String, Route>) -> Value {
    let comments = Comments::of(pool);
    let mut schemas = Map::new();
    for message in pool.all_messages().filter(|message| !message.is_map_entry()) {
        schemas.insert(short(message.full_name()).to_owned(), message_schema(&message, &comments));
    }
    for one in pool.all_enums() {
        let names: Vec<String> = one.values().map(|value| value.name().to_owned()).collect();
        let schema = json!({ "type": "string", "enum": names });
        schemas
            .insert(short(one.full_name()).to_owned(), comments.describe(schema, one.parent_file().name(), one.path()));
    }
    let mut paths = Map::new();
    for (path, route) in routes {
        paths.insert(path.clone(), json!({ "post": post(pool, path, route, &comments) }));
    }
    paths.insert(
        "/v1/native/events".into(),
        json!({ "get": listen(
        "What a session is granted and loses, as it happens",
        &[("session", "string", true, "The session")],
    ) }),
    );
    paths.insert("/v1/observe".into(), json!({ "get": listen(
        "What happens to one name, as it happens",
        &[("kind", "string", true, "What kind of thing: LOCK, ELECTION and so on"), ("name", "string", true, "Its name")],
    ) }));
    let document = json!({ "summary": "This document", "responses": { "200": {
        "description": "OpenAPI 3.1", "content": { "application/json": { "schema": { "type": "object" } } },
    } } });
    paths.insert("/v1/openapi.json".into(), json!({ "get": document }));
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Tidelock", "version": env!("CARGO_PKG_VERSION"), "license": { "name": "Apache-2.0" } },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "basic": { "type": "http", "scheme": "basic" },
                "token": { "type": "http", "scheme": "bearer" },
            },
        },
        "security": [{}, { "basic": [] }, { "token": [] }],
    })
}

fn short(full_name: &str) -> &str {
    full_name.strip_prefix(PACKAGE).map_or(full_name, |rest| rest.trim_start_matches('.'))
}

fn reference(full_name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{}", short(full_name)) })
}

fn post(pool: &DescriptorPool, path: &str, route: &Route, comments: &Comments) -> Value {
    let service = pool.get_service_by_name(SERVICE);
    let method = service.and_then(|service| service.methods().find(|method| method.name() == route.method.name()));
    let Some(method) = method else { return Value::Null };
    let op = route.op.and_then(|op| method.input().get_field_by_json_name(op)?.kind().as_message().cloned());
    let (request, summary) = match &op {
        Some(op) => (operation_schema(&method.input(), op, comments), comments.of_message(op)),
        None => (
            reference(method.input().full_name()),
            comments.0.get(&(file_of(&method.input()), method.path().to_vec())).cloned(),
        ),
    };
    let failed = json!({ "description": "Why not", "content": { "application/json": { "schema": reference("tidelock.v1.Error") } } });
    let mut post = json!({
        "operationId": path.trim_start_matches("/v1/").replace('/', "-"),
        "summary": summary.unwrap_or_default(),
        "tags": [path.split('/').nth(2).unwrap_or_default()],
        "requestBody": { "required": true, "content": { "application/json": { "schema": request } } },
        "responses": {
            "200": { "description": "Done", "content": { "application/json": { "schema": reference(method.output().full_name()) } } },
            "default": failed,
        },
    });
    if route.may_wait() {
        post["parameters"] = json!([{
            "name": "wait_ms", "in": "query", "required": false, "schema": { "type": "integer", "minimum": 0 },
            "description": "Hold the reply back until the grant, for so long; then the place is given up, by a request with the next number. \
             PLACE_MAY_STAND: it is not known that it was, so ask again with the same number.",
        }]);
    }
    post
}

/// The fields of an operation, and those that stand beside it.
fn operation_schema(request: &MessageDescriptor, op: &MessageDescriptor, comments: &Comments) -> Value {
    let mut schema = message_schema(op, comments);
    for name in BESIDE {
        if let Some(field) = request.get_field_by_json_name(name) {
            schema["properties"][name] = field_schema(&field, comments);
        }
    }
    schema["required"] = json!(["session", "number"]);
    schema
}

/// A stream of events.
fn listen(summary: &str, parameters: &[(&str, &str, bool, &str)]) -> Value {
    let mut list: Vec<Value> = parameters
        .iter()
        .map(|(name, kind, required, text)| {
            json!({ "name": name, "in": "query", "required": required, "schema": { "type": kind }, "description": text })
        })
        .collect();
    list.push(json!({ "name": "from", "in": "query", "required": false, "schema": { "type": "string" },
        "description": "Begin after that revision; otherwise from now on" }));
    list.push(json!({ "name": "Last-Event-ID", "in": "header", "required": false, "schema": { "type": "string" },
        "description": "The same, as browsers say it when they come back" }));
    json!({
        "summary": summary,
        "parameters": list,
        "responses": {
            "200": { "description": "Server-sent events; the data of each is a Notice, its id the revision",
                "content": { "text/event-stream": { "schema": reference("tidelock.v1.Notice") } } },
            "default": { "description": "Why not",
                "content": { "application/json": { "schema": reference("tidelock.v1.Error") } } },
        },
    })
}

fn file_of(message: &MessageDescriptor) -> String {
    message.parent_file().name().to_owned()
}

impl Comments {
    fn of_message(&self, message: &MessageDescriptor) -> Option<String> {
        self.0.get(&(file_of(message), message.path().to_vec())).cloned()
    }
}

fn message_schema(message: &MessageDescriptor, comments: &Comments) -> Value {
    let properties: Map<String, Value> =
        message.fields().map(|field| (field.json_name().to_owned(), field_schema(&field, comments))).collect();
    let schema = json!({ "type": "object", "properties": properties });
    comments.describe(schema, &file_of(message), message.path())
}

fn field_schema(field: &FieldDescriptor, comments: &Comments) -> Value {
    let schema = if field.is_map() {
        let value = field.kind().as_message().map(|entry| kind_schema(&entry.map_entry_value_field().kind()));
        json!({ "type": "object", "additionalProperties": value })
    } else if field.cardinality() == Cardinality::Repeated {
        json!({ "type": "array", "items": kind_schema(&field.kind()) })
    } else {
        kind_schema(&field.kind())
    };
    comments.describe(schema, &file_of(&field.parent_message().clone()), field.path())
}

fn kind_schema(kind: &Kind) -> Value {
    match kind {
        Kind::Message(message) => reference(message.full_name()),
        Kind::Enum(one) => reference(one.full_name()),
        Kind::String => json!({ "type": "string" }),
        Kind::Bytes => json!({ "type": "string", "contentEncoding": "base64" }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Double | Kind::Float => json!({ "type": "number" }),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => json!({ "type": "string", "format": "int64" }),
        Kind::Uint64 | Kind::Fixed64 => json!({ "type": "string", "format": "uint64" }),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({ "type": "integer", "format": "int32" }),
        Kind::Uint32 | Kind::Fixed32 => json!({ "type": "integer", "minimum": 0 }),
    }
}
