//! ZooKeeper's admin server: the commands of the face, over HTTP.
//!
//! ```text
//! GET /commands          links to all of them
//! GET /commands/NAME     a JSON document, with the names of ZooKeeper 3.9
//! ```
//!
//! Whoever reaches the address reads figures, paths and session ids, as with ZooKeeper; nothing can be changed but
//! figures, and only by name. Bodies are not read.

use std::collections::HashMap;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use tidelock_face_zookeeper::{ADMIN_COMMANDS, ZookeeperFace};

const PATH_DEFAULT: &str = "/commands";

#[derive(Clone)]
struct Admin {
    face: ZookeeperFace,
    path: String,
}

/// The routes, below `path` instead of `/commands` if one is given.
pub(crate) fn router(face: ZookeeperFace, path: Option<&str>) -> Router {
    let path = literal(path.unwrap_or(PATH_DEFAULT));
    let admin = Admin { face, path: path.clone() };
    let list = get(list);
    let mut routes = Router::new().route(&format!("{path}/"), list.clone());
    if !path.is_empty() {
        routes = routes.route(&path, list);
    }
    routes.route(&format!("{path}/{{*name}}"), get(command)).with_state(admin)
}

/// A path that stands for itself: it begins with a slash, does not end with one, and no part of it is a pattern.
fn literal(path: &str) -> String {
    let trimmed = path.trim_matches('/');
    let plain = |letter: &char| letter.is_ascii_alphanumeric() || "-._~/".contains(*letter);
    let plain: String = trimmed.chars().filter(plain).collect();
    if plain.is_empty() { plain } else { format!("/{plain}") }
}

async fn list(State(admin): State<Admin>) -> Html<String> {
    let link = |(name, _): &(&str, &str)| format!("<a href=\"{}/{name}\">{name}</a>\n<br/>\n", admin.path);
    Html(ADMIN_COMMANDS.iter().map(link).collect())
}

async fn command(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Query(arguments): Query<HashMap<String, String>>,
) -> Response {
    let answer = admin.face.admin_command(&name, |name| arguments.get(name).cloned()).await;
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, "application/json")], answer.body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path from a file must not become a pattern, nor stop the node where the routes are made.
    #[test]
    fn any_text_is_a_path() {
        for (given, expected) in
            [("/commands", "/commands"), ("c/", "/c"), ("", ""), ("/", ""), ("/{*a}/b", "/a/b"), ("/a:b", "/ab")]
        {
            assert_eq!(literal(given), expected, "{given}");
        }
    }
}
