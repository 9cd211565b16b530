//! Something made from files, made again when they change.
//!
//! The files are looked at when the thing is asked for, at most once in [`LOOK_EVERY`], by their times, sizes and
//! numbers: renewed by hand, by renaming, or by turning a symbolic link, all of it is noticed. A new one takes the
//! place of the old in one step. If it cannot be made (a file is gone, or half of a pair is there yet) the old
//! one goes on, a warning is logged once per change, and it is tried again.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::load::TlsError;

/// How often files are looked at. A renewed certificate is in use this long after it is in place, at most.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

type Make<T> = Box<dyn Fn() -> Result<T, TlsError> + Send + Sync>;

/// The newest that could be made.
pub(crate) struct Reloaded<T> {
    files: Vec<PathBuf>,
    make: Make<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    current: Arc<T>,
    /// The files as they were when `current` was made, or was tried to be replaced.
    seen: Vec<Option<Stamp>>,
    /// Whether that try failed.
    failed: bool,
    looked: Instant,
}

/// By what a changed file is told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    number: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl<T> Reloaded<T> {
    /// Makes it for the first time.
    pub(crate) fn new(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Reloaded<T>, TlsError> {
        // Looked at before they are read: a change in between is then seen the next time.
        let seen = stamps(&files);
        let current = Arc::new(make()?);
        let state = Mutex::new(State { current, seen, failed: false, looked: Instant::now() });
        Ok(Reloaded { files, make: Box::new(make), state })
    }

    /// The newest. May read some small files, which is why it is asked for once per connection and no more.
    pub(crate) fn current(&self) -> Arc<T> {
        let mut state = self.state.lock();
        if !self.files.is_empty() && state.looked.elapsed() >= LOOK_EVERY {
            state.looked = Instant::now();
            self.look(&mut state);
        }
        Arc::clone(&state.current)
    }

    fn look(&self, state: &mut State<T>) {
        let now = stamps(&self.files);
        let has_changed = now != state.seen;
        if !has_changed && !state.failed {
            return;
        }
        state.seen = now;
        match (self.make)() {
            Ok(new) => {
                state.current = Arc::new(new);
                state.failed = false;
                tracing::info!(files = ?self.files, "TLS files have changed and are in use");
            }
            Err(error) => {
                state.failed = true;
                if has_changed {
                    tracing::warn!("TLS files have changed and cannot be used, the old ones go on: {error}");
                }
            }
        }
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    files.iter().map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(file).ok()?;
    Some(Stamp {
        device: metadata.dev(),
        number: metadata.ino(),
        bytes: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}
