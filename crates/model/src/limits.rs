//! Bounds that hold everywhere, whatever a face allows. Each refuses at the door, long before
//! memory or the log could suffer.

/// Longest key, the space byte apart. ZooKeeper paths and etcd keys are far shorter; the bound keeps
/// index nodes and error messages sane.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// Largest value. Above etcd's 1.5 MiB request limit so that the faces' own limits bite first.
pub const VALUE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Largest encoded command.
pub const COMMAND_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Most operations and compares in one level of a transaction that decoding accepts. Faces allow
/// less (etcd: 128).
pub const TXN_OPS_MAX: usize = 16 * 1024;

/// Deepest nesting of transactions that decoding accepts; deeper input is refused, not recursed into.
pub const TXN_DEPTH_MAX: usize = 16;

/// Most commands packed into one log entry.
pub const BATCH_COMMANDS_MAX: usize = 4096;

/// Most alarms raised at a time: several for every member of the largest cluster.
pub const ALARMS_MAX: usize = 256;

/// Longest name of a user or a role.
pub const AUTH_NAME_BYTES_MAX: usize = 1024;
/// Most users, and most roles, and most roles of one user.
pub const AUTH_NAMES_MAX: usize = 100_000;
/// Most ranges one role may have.
pub const ROLE_PERMISSIONS_MAX: usize = 10_000;
/// Longest hash of a password.
pub const PASSWORD_HASH_BYTES_MAX: usize = 512;

/// Most versions of a key told at a time.
pub const HISTORY_VERSIONS_MAX: usize = 1000;
/// Bytes of data told with them, all together: as JSON at its worst six times as many.
pub const HISTORY_BYTES_MAX: usize = 1024 * 1024;

/// Longest member name or URL, and most URLs a member may have.
pub const MEMBER_TEXT_BYTES_MAX: usize = 4096;
/// Most URLs a member may have.
pub const MEMBER_URLS_MAX: usize = 64;

/// Longest path of a znode, the number of a sequential one included: it must fit a key, with the byte that
/// says which kind of record it is.
pub const ZNODE_PATH_BYTES_MAX: usize = KEY_BYTES_MAX - 1024;
/// Most entries in one list of rights. All of them at their longest still fit one value.
pub const ZNODE_ACL_MAX: usize = 1024;
/// Longest name of a scheme.
pub const ZNODE_SCHEME_BYTES_MAX: usize = 64;
/// Longest identity within a scheme.
pub const ZNODE_IDENTITY_BYTES_MAX: usize = 2048;
/// Most identities one connection may have.
pub const ZNODE_IDENTITIES_MAX: usize = 256;
/// Most operations carried out together: more than fit into ZooKeeper's largest request.
pub const ZNODE_OPS_MAX: usize = 64 * 1024;
/// Most requests of one connection in one command.
pub const ZNODE_REQUESTS_MAX: usize = 4096;
/// Most znodes looked at for reaping in one command.
pub const ZNODE_PATHS_MAX: usize = 4096;
/// Bytes found by the reads of one query, from which on the rest is left to the next query: a small request can
/// ask for the same large znode thousands of times.
pub const ZNODE_FOUND_BYTES_MAX: usize = 64 << 20;

/// Longest name of a lock, a barrier and so on.
pub const NATIVE_NAME_BYTES_MAX: usize = 512;
/// Most bytes of a client's own that go with a place or a version.
pub const NATIVE_DATA_BYTES_MAX: usize = 4096;
/// Shortest time to live of a native session: leases count in seconds.
pub const NATIVE_TTL_MS_MIN: u32 = 1000;
/// Longest time to live of a native session: a day. What is held for longer is renewed by somebody who lives.
pub const NATIVE_TTL_MS_MAX: u32 = 24 * 60 * 60 * 1000;
/// Most answers that a session has not acknowledged, and so most requests it may have under way.
pub const NATIVE_UNACKNOWLEDGED_MAX: usize = 64;
/// Most things one session holds or waits for.
pub const NATIVE_HOLDINGS_MAX: usize = 10_000;
/// Most places in one queue, those that hold included.
pub const NATIVE_QUEUE_MAX: usize = 65_536;
/// Most permits of one semaphore.
pub const NATIVE_PERMITS_MAX: u32 = 1_000_000;
/// Most parties of one barrier or phaser, promises of one latch, readers of one version, protectors of one object.
pub const NATIVE_PARTIES_MAX: u32 = 65_536;
/// Deepest nesting of phasers.
pub const NATIVE_PHASER_DEPTH_MAX: usize = 8;
/// Most tokens that one write of keys shows.
pub const NATIVE_WRITE_GUARDS_MAX: usize = 16;
/// Most keys that one write changes, and most that it has conditions on: as many as a transaction of etcd's.
pub const NATIVE_WRITE_KEYS_MAX: usize = 128;
/// Most bytes of keys and values in one write: it fits into one message of a client.
pub const NATIVE_WRITE_BYTES_MAX: usize = 48 * 1024;
/// Most items told at a time.
pub const NATIVE_LIST_MAX: u32 = 1000;
