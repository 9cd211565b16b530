//! What each change replaced, in the order of the changes.
//!
//! The record of a change knows the number of what it replaced ([`Record::mark`]), so that from a version to the one
//! before it is one step, and nothing is searched to add one. Sweeping goes along the changes, too: it takes from the
//! front. Numbers go round, so that of a change that was swept is not followed.
//!
//! Going back a million versions of one key step by step would take long, so every 16th of them ([`STRIDE`]) also knows the
//! one 16 before it, and every 256th the one 256 before it.

use std::collections::VecDeque;

use tidelock_model::{Record, Revision};

/// How far the long steps are. The longest are as many of them.
const STRIDE: u64 = 16;

/// How many are allocated together: one less than fill a block of the allocator, as in `changes.rs`.
const CHUNK: usize = (8 << 10) / size_of::<Entry>() - 1;

struct Entry {
    /// Gone when it was swept.
    record: Option<Record>,
    /// The number of a version far before, or zero.
    far: u32,
}

struct Chunk {
    /// All of them, but for the last chunk.
    entries: Vec<Entry>,
    held: usize,
}

pub(super) struct Replaced {
    chunks: VecDeque<Chunk>,
    /// The number of the first entry. Zero is nobody's number.
    first: u32,
    /// What changes before this revision replaced may have been forgotten.
    pub(super) swept: Revision,
}

impl Replaced {
    pub(super) fn new() -> Replaced {
        Replaced { chunks: VecDeque::new(), first: 1, swept: Revision(0) }
    }

    fn numbered(&self, number: u32) -> Option<&Entry> {
        let at = number.wrapping_sub(self.first) as usize;
        self.chunks.get(at / CHUNK)?.entries.get(at % CHUNK)
    }

    fn entry(&self, change: &Record) -> Option<&Entry> {
        if change.mark() == 0 || change.meta().modified < self.swept {
            return None;
        }
        self.numbered(change.mark())
    }

    /// What `change` replaced.
    pub(super) fn by(&self, change: &Record) -> Option<&Record> {
        older(change, self.entry(change)?)
    }

    /// A version far before `change`, if `change` is one of those that know one and it is still held.
    pub(super) fn far_before(&self, change: &Record) -> Option<&Record> {
        if !is_every(STRIDE, change) {
            return None;
        }
        older(change, self.numbered(self.entry(change)?.far)?)
    }

    /// Adds what `change` replaced, which comes after all changes before.
    pub(super) fn push(&mut self, change: &Record, replaced: Record) {
        let far = if is_every(STRIDE, change) { self.number_far_before(change, &replaced) } else { 0 };
        let mut number = self.add(Entry { record: Some(replaced), far });
        if number == 0 {
            // Gone round: the number that means none stays empty.
            let record = self.take(number);
            number = self.add(Entry { record, far });
        }
        change.set_mark(number);
    }

    fn add(&mut self, entry: Entry) -> u32 {
        if self.chunks.back().is_none_or(|last| last.entries.len() == CHUNK) {
            self.chunks.push_back(Chunk { entries: Vec::with_capacity(CHUNK), held: 0 });
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let Some(last) = self.chunks.back_mut() else { return 0 };
        last.held += usize::from(entry.record.is_some());
        last.entries.push(entry);
        self.first.wrapping_add((before + last.entries.len() - 1) as u32)
    }

    /// The number of the version that `change`, which replaces `newest`, shall know.
    fn number_far_before(&self, change: &Record, newest: &Record) -> u32 {
        let mut at = newest;
        for _ in 2..STRIDE {
            match self.by(at) {
                Some(before) => at = before,
                None => return 0,
            }
        }
        let near = at.mark();
        if !is_every(STRIDE * STRIDE, change) {
            return near;
        }
        // On from there by the steps that others know.
        let step = |number: u32| Some(self.entry(self.numbered(number)?.record.as_ref()?)?.far).filter(|far| *far != 0);
        let far = (1..STRIDE).try_fold(near, |number, _| step(number));
        far.unwrap_or(near)
    }

    /// Takes what `change` replaced out of here, if it is still held and `is_due` says so of it. The change is the first
    /// that is not swept.
    pub(super) fn forget(&mut self, change: &Record, is_due: impl Fn(&Record) -> bool) -> Option<Record> {
        let replaced = self.numbered(change.mark())?.record.as_ref()?;
        if change.mark() != 0 && is_due(replaced) { self.take(change.mark()) } else { None }
    }

    fn take(&mut self, number: u32) -> Option<Record> {
        let at = number.wrapping_sub(self.first) as usize;
        let chunk = self.chunks.get_mut(at / CHUNK)?;
        let record = chunk.entries.get_mut(at % CHUNK)?.record.take()?;
        chunk.held -= 1;
        while self.chunks.front().is_some_and(|first| first.held == 0 && first.entries.len() == CHUNK) {
            self.chunks.pop_front();
            self.first = self.first.wrapping_add(CHUNK as u32);
        }
        Some(record)
    }

    /// How many are held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.held).sum()
    }
}

/// What is held there, on the way back from `change`: whoever follows it must come to an end, at the right key.
fn older<'a>(change: &Record, entry: &'a Entry) -> Option<&'a Record> {
    let record = entry.record.as_ref()?;
    assert!(record.position() < change.position(), "what was replaced is older");
    Some(record)
}

/// Whether this is one of every `count` versions of its key.
fn is_every(count: u64, change: &Record) -> bool {
    let version = change.meta().version;
    version != 0 && version.is_multiple_of(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelock_model::{LeaseId, RecordMeta};

    fn version(number: u64) -> Record {
        let modified = Revision(number);
        Record::new(RecordMeta { created: Revision(1), modified, version: number, lease: LeaseId::NONE, sub: 0 }, b"")
    }

    /// A store that lives long enough comes to the end of the numbers: zero, which means none, must not be given, and
    /// what was swept an age ago must not be taken for what has its number now.
    #[test]
    fn numbers_go_round() {
        let mut replaced = Replaced::new();
        replaced.first = u32::MAX - 700;
        let changes: Vec<Record> = (1..=1_500).map(version).collect();
        changes.windows(2).for_each(|pair| replaced.push(&pair[1], pair[0].clone()));
        assert!(changes[1..].iter().all(|change| change.mark() != 0));
        for pair in changes.windows(2) {
            assert_eq!(replaced.by(&pair[1]), Some(&pair[0]));
        }
        assert_eq!(replaced.by(&changes[0]), None);
        // Their places are one below their versions.
        for (version, far) in [(1_024, 768), (512, 256), (256, 240), (1_008, 992), (32, 16)] {
            assert_eq!(replaced.far_before(&changes[version - 1]), Some(&changes[far - 1]), "{version}");
        }
        for version in [16, 17, 1_009] {
            assert_eq!(replaced.far_before(&changes[version - 1]), None, "{version}");
        }
        assert_eq!(replaced.len(), 1_499);

        replaced.swept = Revision(1_400);
        for change in &changes[1..1_399] {
            assert!(replaced.forget(change, |_| true).is_some());
        }
        assert_eq!((replaced.len(), replaced.chunks.len()), (101, 1));
        let stale = version(900);
        stale.set_mark(changes[1_450].mark());
        assert_eq!(replaced.by(&stale), None);
        assert_eq!(replaced.far_before(&changes[1_392 - 1]), None);
        assert_eq!(replaced.far_before(&changes[1_408 - 1]), None);
        assert_eq!(replaced.far_before(&changes[1_424 - 1]), Some(&changes[1_408 - 1]));
    }
}
