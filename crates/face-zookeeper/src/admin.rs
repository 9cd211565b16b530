//! The commands of ZooKeeper's admin server: what the four-letter words tell, as JSON, with the names of 3.9.
//!
//! No HTTP here: who serves it asks with the last part of the address and sends what comes back. Answers are bounded as
//! those of `words` are. Nothing that is asked here changes anything but figures; what does in ZooKeeper (snapshot,
//! restore) is refused with what to do instead.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Map, Value, json};
use tidelock_model::SessionFound;

use crate::figures::Client;
use crate::listings::by_path;
use crate::machine::environment;
use crate::report::{Figure, Following, Mode, NOT_SERVING, Report, Server, VERSION};
use crate::{Face, ZookeeperFace};

/// Every command: its name, and the word it is also known by.
pub const ADMIN_COMMANDS: &[(&str, &str)] = &[
    ("configuration", "conf"),
    ("connection_stat_reset", "crst"),
    ("connections", "cons"),
    ("dirs", "dirs"),
    ("dump", "dump"),
    ("environment", "envi"),
    ("get_trace_mask", "gtmk"),
    ("hash", "hash"),
    ("initial_configuration", "icfg"),
    ("is_read_only", "isro"),
    ("last_snapshot", "lsnp"),
    ("leader", "lead"),
    ("monitor", "mntr"),
    ("observer_connection_stat_reset", "orst"),
    ("observers", "obsr"),
    ("restore", "rest"),
    ("ruok", "ruok"),
    ("server_stats", "srvr"),
    ("set_trace_mask", "stmk"),
    ("snapshot", "snap"),
    ("stat_reset", "srst"),
    ("stats", "stat"),
    ("system_properties", "sysp"),
    ("voting_view", "vote"),
    ("watch_summary", "wchs"),
    ("watches", "wchc"),
    ("watches_by_path", "wchp"),
    ("zabstate", "zabs"),
];

/// An answer, to be sent as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAnswer {
    /// The HTTP status.
    pub status: u16,
    /// A JSON document.
    pub body: String,
}

/// Names and values, or what went wrong.
type Fields = Result<Vec<(&'static str, Value)>, Refused>;

struct Refused {
    status: u16,
    why: String,
}

/// ZooKeeper answers what it cannot do with 200 and a line in `error`.
fn refused(why: impl Into<String>) -> Refused {
    Refused { status: 200, why: why.into() }
}

impl ZookeeperFace {
    /// Answers the command of this name, or known by this word. `argument` gives what was asked for by its name.
    pub async fn admin_command(&self, name: &str, argument: impl Fn(&str) -> Option<String>) -> AdminAnswer {
        let known = ADMIN_COMMANDS.iter().find(|(command, word)| *command == name || *word == name);
        let Some((command, _)) = known else {
            return answer(name, Err(refused(format!("Unknown command: {name}"))));
        };
        answer(command, self.shared.fields(command, &argument).await)
    }
}

fn answer(command: &str, fields: Fields) -> AdminAnswer {
    let mut document = Map::new();
    let mut status = 200;
    let error = match fields {
        Ok(fields) => {
            document.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
            Value::Null
        }
        Err(refused) => {
            status = refused.status;
            Value::String(refused.why)
        }
    };
    document.insert("command".to_owned(), command.into());
    document.insert("error".to_owned(), error);
    AdminAnswer { status, body: format!("{:#}", Value::Object(document)) }
}

impl Face {
    async fn fields(&self, command: &str, argument: &impl Fn(&str) -> Option<String>) -> Fields {
        Ok(match command {
            "server_stats" | "stats" | "monitor" if !self.is_serving() => return Err(refused(NOT_SERVING)),
            "ruok" | "observer_connection_stat_reset" => Vec::new(),
            "connection_stat_reset" => {
                self.reset_connections();
                Vec::new()
            }
            "stat_reset" => {
                self.counts.reset();
                Vec::new()
            }
            "configuration" => self.configuration(),
            "connections" | "dump" | "watch_summary" | "watches" | "watches_by_path" => self.lists(command).await,
            "dirs" => {
                let bytes = self.coordinator.status().disk_bytes;
                vec![("datadir_size", bytes.into()), ("logdir_size", bytes.into())]
            }
            "environment" => {
                let all = tokio::task::spawn_blocking(|| environment(VERSION)).await.unwrap_or_default();
                all.into_iter().map(|(name, value)| (name, value.into())).collect()
            }
            "get_trace_mask" => vec![("tracemask", self.counts.trace_mask.load(Relaxed).into())],
            "set_trace_mask" => {
                let mask = argument("traceMask").and_then(|mask| mask.parse::<i64>().ok());
                let mask = mask.ok_or_else(|| refused("setTraceMask requires long traceMask argument"))?;
                self.counts.trace_mask.store(mask, Relaxed);
                vec![("tracemask", mask.into())]
            }
            "hash" => {
                let (index, digest) = self.digest();
                vec![("digests", json!([{"zxid": index, "digest": digest, "digest_version": 2}]))]
            }
            "initial_configuration" => {
                vec![("initial_configuration", json!(self.config.about.initial_configuration))]
            }
            "is_read_only" => vec![("read_only", self.read_only.is_on().into())],
            "leader" => self.leader().await?,
            "monitor" => self.monitor().await.into_iter().map(|(name, figure)| (name, value(figure))).collect(),
            "observers" => {
                let servers = self.servers().await;
                let synced = Following::of(&self.coordinator.status(), &servers).synced_observers;
                let told =
                    |server: &Server| json!({"sid": server.number, "remote_socket_address": server.peer_address});
                let observers: Vec<Value> = servers.iter().filter(|server| !server.votes).map(told).collect();
                vec![("synced_observers", synced.into()), ("observers", observers.into())]
            }
            "server_stats" => server_stats(&self.report().await),
            "stats" => {
                let mut fields = server_stats(&self.report().await);
                let connections = self.connections().items;
                let list: Vec<Value> = connections.iter().map(|client| connection(client, false)).collect();
                fields.extend([("connections", list.into()), ("secure_connections", json!([]))]);
                fields
            }
            "system_properties" => {
                let all = tokio::task::spawn_blocking(|| environment(VERSION)).await.unwrap_or_default();
                let of_system = |name: &str| name.starts_with("os.") || name.starts_with("user.");
                all.into_iter().filter(|(name, _)| of_system(name)).map(|(name, value)| (name, value.into())).collect()
            }
            "voting_view" => self.voting_view().await,
            "zabstate" => self.zab_state().await,
            other => return Err(instead(other)),
        })
    }

    /// Who is there, and what they watch.
    async fn lists(&self, command: &str) -> Vec<(&'static str, Value)> {
        match command {
            "connections" => {
                let connections = self.connections().items;
                let list: Vec<Value> = connections.iter().map(|client| connection(client, true)).collect();
                vec![("connections", list.into()), ("secure_connections", json!([]))]
            }
            "dump" => self.dump().await,
            "watch_summary" => {
                let ((paths, watches), watching) = self.watches.with(|table, _| (table.totals(), table.watching()));
                let counts = [("num_connections", watching), ("num_paths", paths), ("num_total_watches", watches)];
                counts.map(|(name, count)| (name, count.into())).to_vec()
            }
            "watches" => {
                let watches = self.all_watches().await.items;
                let by_session = watches.iter().map(|(session, paths)| {
                    (session.to_string(), paths.iter().map(|path| Value::from(&**path)).collect())
                });
                vec![("session_id_to_watched_paths", Value::Object(by_session.collect()))]
            }
            "watches_by_path" => {
                let watches = self.all_watches().await.items;
                let by_path = by_path(&watches).into_iter().map(|(path, sessions)| (path.to_owned(), sessions.into()));
                vec![("path_to_session_ids", Value::Object(by_path.collect()))]
            }
            // Nothing else is a list.
            _ => Vec::new(),
        }
    }

    fn configuration(&self) -> Vec<(&'static str, Value)> {
        let (config, about) = (&self.config, &self.config.about);
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).into();
        vec![
            ("client_port", about.client_port.map_or(-1, i32::from).into()),
            ("data_dir", about.data_dir.clone().into()),
            ("data_log_dir", about.data_dir.clone().into()),
            ("tick_time", ms(config.tick)),
            ("max_client_cnxns", config.connections_per_address.into()),
            ("min_session_timeout", ms(config.session_timeout_min)),
            ("max_session_timeout", ms(config.session_timeout_max)),
            ("server_id", config.server_number.into()),
            ("client_port_listen_backlog", (-1).into()),
        ]
    }

    async fn dump(&self) -> Vec<(&'static str, Value)> {
        let sessions = self.all_sessions().await.items;
        let ends = self.session_ends(&sessions).await.unwrap_or_default();
        let ends = ends.into_iter().map(|(end, sessions)| (end.to_string(), sessions.into()));
        let owners = sessions.into_iter().filter(|session| !session.ephemerals.is_empty());
        let paths = owners.map(|SessionFound { session, ephemerals, .. }| (session.0.to_string(), ephemerals.into()));
        vec![
            ("expiry_time_to_session_ids", Value::Object(ends.collect())),
            ("session_id_to_ephemeral_paths", Value::Object(paths.collect())),
        ]
    }

    async fn leader(&self) -> Fields {
        let status = self.coordinator.status();
        if self.mode() == Mode::Standalone {
            return Err(refused("server is not initialized"));
        }
        let servers = self.servers().await;
        let leader = servers.iter().find(|server| Some(server.node) == status.leader);
        let leader = leader.ok_or_else(|| refused(NOT_SERVING))?;
        Ok(vec![
            ("is_leader", (leader.node == status.node).into()),
            ("leader_id", leader.number.into()),
            ("leader_ip", leader.host().into()),
        ])
    }

    async fn voting_view(&self) -> Vec<(&'static str, Value)> {
        // One server alone has nobody to vote with, ZooKeeper says.
        let servers = if self.mode() == Mode::Standalone { Vec::new() } else { self.servers().await };
        let view = servers.iter().filter(|server| server.votes).map(|server| {
            let told = json!({
                "server_addresses": [server.peer_address],
                "election_addresses": [server.peer_address],
                "client_address": server.client_address.as_deref().unwrap_or_default(),
                "learner_type": server.kind(),
            });
            (server.number.to_string(), told)
        });
        vec![("current_config", Value::Object(view.collect()))]
    }

    async fn zab_state(&self) -> Vec<(&'static str, Value)> {
        if self.mode() == Mode::Standalone {
            return vec![("voting", false.into()), ("zabstate", "".into())];
        }
        let (status, servers) = (self.coordinator.status(), self.servers().await);
        let own = servers.iter().find(|server| server.node == status.node);
        let zxid = status.revision.0;
        let mut fields = vec![
            ("myid", self.config.server_number.into()),
            ("is_leader", (status.leader == Some(status.node)).into()),
            ("voting", own.is_some_and(|own| own.votes).into()),
            ("last_zxid", format!("0x{zxid:x}").into()),
            ("zab_epoch", (zxid >> 32).into()),
            ("zab_counter", (zxid & 0xffff_ffff).into()),
            ("zabstate", if status.leader.is_some() { "broadcast" } else { "election" }.into()),
        ];
        if let Some(own) = own {
            let address = json!({"all_addresses": [own.peer_address], "one": own.peer_address, "empty": false});
            fields.extend([("quorum_address", address.clone()), ("election_address", address)]);
            fields.push(("client_address", own.client_address.as_deref().unwrap_or_default().into()));
        }
        fields
    }
}

/// What ZooKeeper does over this door and we do elsewhere.
fn instead(command: &str) -> Refused {
    match command {
        "snapshot" => Refused {
            status: 403,
            why: "not served here: `tidelock snapshot save FILE` takes a backup; with users it needs root".to_owned(),
        },
        "restore" => Refused {
            status: 403,
            why:
                "not served here: `tidelock snapshot restore FILE` makes a data directory out of a backup, for a node \
                  that is stopped"
                    .to_owned(),
        },
        // Snapshots are the node's own business and are not told.
        _ => refused("snapshots are taken by how much the journal grew; when the last one was taken is not told"),
    }
}

fn value(figure: Figure) -> Value {
    match figure {
        Figure::Text(text) => text.into(),
        Figure::Whole(number) => number.into(),
        Figure::Fraction(number) => number.into(),
    }
}

fn connection(client: &Client, with_details: bool) -> Value {
    let mut told = json!({
        "remote_socket_address": client.address.to_string(),
        "interest_ops": i32::from(client.session.is_some()),
        "outstanding_requests": client.waiting,
        "packets_received": client.received,
        "packets_sent": client.sent,
    });
    if let (true, Some(session), Some(fields)) = (with_details, client.session, told.as_object_mut()) {
        let details = [
            ("session_id", session.into()),
            ("last_operation", client.operation.into()),
            ("established", client.opened_ms.into()),
            ("session_timeout", client.timeout_ms.into()),
            ("last_cxid", client.xid.map_or(-1, i64::from).into()),
            ("last_zxid", client.zxid.into()),
            ("last_response_time", client.answered_ms.into()),
            ("last_latency", client.latency_ms.into()),
            ("min_latency", client.latency.min.into()),
            ("avg_latency", (client.latency.average as u64).into()),
            ("max_latency", client.latency.max.into()),
        ];
        fields.extend(details.map(|(name, value): (&str, Value)| (name.to_owned(), value)));
    }
    told
}

fn server_stats(report: &Report) -> Vec<(&'static str, Value)> {
    // Sizes of replies are not measured; this is how ZooKeeper says so.
    let unmeasured = json!({"last_buffer_size": -1, "min_buffer_size": -1, "max_buffer_size": -1});
    let stats = json!({
        "packets_sent": report.sent,
        "packets_received": report.received,
        "client_response_stats": unmeasured,
        "data_dir_size": report.status.disk_bytes,
        "log_dir_size": report.status.disk_bytes,
        "last_processed_zxid": report.zxid(),
        "outstanding_requests": report.waiting,
        "server_state": report.mode.as_str(),
        "avg_latency": report.latency.average,
        "max_latency": report.latency.max,
        "min_latency": report.latency.min,
        "num_alive_client_connections": report.connections,
        "provider_null": false,
        "uptime": report.uptime_ms,
    });
    let mut fields = vec![
        ("version", VERSION.into()),
        ("read_only", (report.mode == Mode::ReadOnly).into()),
        ("server_stats", stats),
        ("client_response", unmeasured.clone()),
        ("node_count", report.totals.znodes.into()),
    ];
    if report.mode == Mode::Leader {
        fields.push(("proposal_stats", unmeasured));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tools ask by either name; one that is listed twice would answer with the wrong figures.
    #[test]
    fn commands_are_listed_once_and_sorted() {
        for pair in ADMIN_COMMANDS.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{pair:?}");
        }
        let mut words: Vec<&str> = ADMIN_COMMANDS.iter().map(|(_, word)| *word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), ADMIN_COMMANDS.len());
    }

    /// Whoever cannot be served must find that in the document, as ZooKeeper's tools look for it there.
    #[test]
    fn every_answer_names_the_command_and_the_error() {
        let good: Value = serde_json::from_str(&answer("ruok", Ok(vec![])).body).unwrap();
        assert_eq!(good, json!({"command": "ruok", "error": null}));
        let bad = answer("snapshot", Err(instead("snapshot")));
        let document: Value = serde_json::from_str(&bad.body).unwrap();
        assert_eq!((bad.status, &document["command"]), (403, &json!("snapshot")));
        assert!(document["error"].as_str().unwrap().contains("tidelock snapshot save"), "{document}");
    }
}
