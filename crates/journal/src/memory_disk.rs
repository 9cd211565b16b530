//! A disk in memory that behaves as badly as real ones are allowed to, for tests and the simulator.
//!
//! It keeps apart what a reader sees and what is durable. [`MemoryDisk::crash`] asks, for every 512-byte
//! sector of every write that was not synced and for every directory change that was not synced,
//! whether it made it to the medium; a sector holds some prefix of what was written to it, and sectors and
//! directory changes survive independently of each other. A failed sync throws away what it was to
//! write while readers go on seeing it, as operating systems do. Damage ([`MemoryDisk::flip`] and the
//! like) strikes the durable bytes directly.
//!
//! Nothing here is random: every choice is the caller's, so a run can be replayed.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};

/// What reaches the medium as a whole or not at all.
const SECTOR_BYTES: usize = 512;

/// A kind of call, for [`MemoryDisk::fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// `read_at`. Nothing is read.
    Read,
    /// `write_at`. The first half is written.
    Write,
    /// `sync_data`. What was to be synced can no longer become durable unless it is written again.
    Sync,
    /// `allocate_zeroed`. Nothing is allocated.
    Allocate,
    /// `create`, `rename` or `remove`. Nothing changes.
    Names,
    /// `sync_dir`. The changes stay in doubt.
    SyncDir,
}

/// Something not synced, whose fate a crash decides.
#[derive(Clone, Copy, Debug)]
pub enum Unsynced<'a> {
    /// One write's part of one sector.
    Sector {
        /// The file's present name, empty if it has none any more.
        file: &'a str,
        /// Where the sector starts.
        offset: u64,
    },
    /// A created, renamed or removed name.
    Name {
        /// The new name, or the removed one.
        file: &'a str,
    },
}

/// A directory in memory. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Default)]
struct State {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_changes: Vec<NameChange>,
    capacity: Option<u64>,
    faults: Vec<(Operation, u64, io::ErrorKind)>,
    /// How many more changing calls are carried out before the power goes.
    power: Option<u64>,
    operations: u64,
    /// Counts crashes: a file opened before one is of no use after it.
    boot: u64,
}

#[derive(Clone, Default)]
struct Inode {
    visible: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
enum NameChange {
    Link { name: String, inode: u64 },
    Rename { from: String, to: String, inode: u64 },
    Unlink { name: String, inode: u64 },
}

impl NameChange {
    fn name(&self) -> &str {
        match self {
            NameChange::Link { name, .. } | NameChange::Unlink { name, .. } | NameChange::Rename { to: name, .. } => {
                name
            }
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Link { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Rename { from, to, inode } => {
                remove_if(names, from, *inode);
                names.insert(to.clone(), *inode);
            }
            NameChange::Unlink { name, inode } => remove_if(names, name, *inode),
        }
    }
}

fn remove_if(names: &mut BTreeMap<String, u64>, name: &str, inode: u64) {
    if names.get(name) == Some(&inode) {
        names.remove(name);
    }
}

/// Whether a call is carried out, and what it then reports.
enum Verdict {
    Go,
    /// The power goes during the call: it may leave traces, and nobody hears of it.
    LastGasp,
}

impl State {
    fn begin(&mut self, operation: Operation) -> io::Result<Verdict> {
        let changing = operation != Operation::Read;
        self.operations += u64::from(changing);
        if self.power == Some(0) {
            return Err(power_is_off());
        }
        for (at, fault) in self.faults.iter_mut().enumerate().filter(|(_, fault)| fault.0 == operation) {
            fault.1 -= 1;
            if fault.1 == 0 {
                let kind = self.faults.remove(at).2;
                return Err(io::Error::new(kind, "injected failure"));
            }
        }
        match &mut self.power {
            Some(left) if changing => {
                *left -= 1;
                Ok(if *left == 0 { Verdict::LastGasp } else { Verdict::Go })
            }
            _ => Ok(Verdict::Go),
        }
    }

    fn used(&self) -> u64 {
        self.names.values().filter_map(|inode| self.inodes.get(inode)).map(|inode| inode.visible.len() as u64).sum()
    }

    fn write(&mut self, inode: u64, offset: usize, bytes: &[u8]) -> io::Result<()> {
        let free = self.capacity.map(|capacity| capacity.saturating_sub(self.used()));
        let file = self.inodes.get_mut(&inode).ok_or_else(power_is_off)?;
        let growth = (offset + bytes.len()).saturating_sub(file.visible.len());
        if free.is_some_and(|free| growth as u64 > free) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        put(&mut file.visible, offset, bytes);
        file.unsynced.push((offset, bytes.to_vec()));
        Ok(())
    }

    fn change_names(&mut self, change: NameChange) -> io::Result<()> {
        let verdict = self.begin(Operation::Names)?;
        change.apply(&mut self.names);
        self.name_changes.push(change);
        finish(&verdict)
    }

    fn find(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_string()))
    }

    fn inode_mut(&mut self, name: &str) -> &mut Inode {
        let inode = self.names.get(name).copied();
        inode.and_then(|inode| self.inodes.get_mut(&inode)).expect("the caller names an existing file")
    }
}

fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    content.resize(content.len().max(end), 0);
    content[offset..end].copy_from_slice(bytes);
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

fn finish(verdict: &Verdict) -> io::Result<()> {
    match verdict {
        Verdict::Go => Ok(()),
        Verdict::LastGasp => Err(power_is_off()),
    }
}

impl Inode {
    /// Decides what of the unsynced writes is on the medium.
    fn crash(&mut self, name: &str, keep: &mut impl FnMut(Unsynced<'_>) -> bool) {
        let writes = std::mem::take(&mut self.unsynced);
        let end = writes.iter().map(|(offset, bytes)| offset + bytes.len()).max().unwrap_or(0);
        let begin = writes.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
        for sector in (begin / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)).map(|number| number * SECTOR_BYTES) {
            for (offset, bytes) in &writes {
                let from = sector.max(*offset);
                let to = (sector + SECTOR_BYTES).min(offset + bytes.len());
                if from >= to {
                    continue;
                }
                if !keep(Unsynced::Sector { file: name, offset: sector as u64 }) {
                    break;
                }
                put(&mut self.durable, from, &bytes[from - offset..to - offset]);
            }
        }
        self.visible = self.durable.clone();
    }
}

impl MemoryDisk {
    /// An empty directory with all the room in the world.
    #[must_use]
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    /// A copy that shares nothing with this one, without pending faults.
    #[must_use]
    pub fn fork(&self) -> MemoryDisk {
        let mut state = self.lock().clone();
        state.faults.clear();
        state.power = None;
        MemoryDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Limits the sum of all file lengths; more fails with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Makes the `nth` call of this kind from now on (1 is the next) fail once.
    pub fn fail(&self, operation: Operation, nth: u64, kind: io::ErrorKind) {
        self.lock().faults.push((operation, nth.max(1), kind));
    }

    /// Cuts the power during the `operations`-th changing call from now on (1 is the next): it and all
    /// later ones fail until [`MemoryDisk::crash`].
    pub fn power_off_during(&self, operations: u64) {
        self.lock().power = Some(operations.max(1));
    }

    /// Whether the power went during a call and is not back yet.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.lock().power == Some(0)
    }

    /// From now on the disk is sound: it has room, and no failure is to come. A power cut that has come stays.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.capacity = None;
        state.faults.clear();
        state.power = state.power.filter(|left| *left == 0);
    }

    /// How many changing calls there were.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Loses everything not synced, except what `keep` says. Files opened before are of no use afterwards,
    /// the power is back and pending faults are forgotten.
    pub fn crash(&self, mut keep: impl FnMut(Unsynced<'_>) -> bool) {
        let mut state = self.lock();
        let state = &mut *state;
        let names: BTreeMap<u64, String> = state.names.iter().map(|(name, inode)| (*inode, name.clone())).collect();
        for (number, inode) in &mut state.inodes {
            inode.crash(names.get(number).map_or("", String::as_str), &mut keep);
        }
        for change in std::mem::take(&mut state.name_changes) {
            if keep(Unsynced::Name { file: change.name() }) {
                change.apply(&mut state.durable_names);
            }
        }
        state.names = state.durable_names.clone();
        let named: Vec<u64> = state.names.values().copied().collect();
        state.inodes.retain(|number, _| named.contains(number));
        state.power = None;
        state.faults.clear();
        state.boot += 1;
    }

    /// What a reader sees in the file.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.lock();
        state.names.get(name).and_then(|inode| state.inodes.get(inode)).map(|inode| inode.visible.clone())
    }

    /// Flips the bits of `mask` in one byte of an existing file, for good.
    pub fn flip(&self, name: &str, offset: usize, mask: u8) {
        self.damage(name, |bytes| {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= mask;
            }
        });
    }

    /// Cuts an existing file short, for good.
    pub fn truncate(&self, name: &str, len: usize) {
        self.damage(name, |bytes| bytes.truncate(len));
    }

    /// Turns everything from `offset` on to zeros, for good.
    pub fn zero_from(&self, name: &str, offset: usize) {
        self.damage(name, |bytes| {
            if let Some(rest) = bytes.get_mut(offset..) {
                rest.fill(0);
            }
        });
    }

    /// Puts `bytes` over those of an existing file, for good.
    pub fn overwrite(&self, name: &str, offset: usize, bytes: &[u8]) {
        self.damage(name, |content| put(content, offset, bytes));
    }

    fn damage(&self, name: &str, change: impl Fn(&mut Vec<u8>)) {
        let mut state = self.lock();
        let inode = state.inode_mut(name);
        change(&mut inode.visible);
        change(&mut inode.durable);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, inode: u64, boot: u64) -> Box<dyn DiskFile> {
        Box::new(MemoryFile { disk: self.clone(), inode, boot })
    }
}

impl Disk for MemoryDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let state = self.lock();
        Ok(self.handle(state.find(name)?, state.boot))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.lock();
        let inode = state.next_inode;
        state.next_inode += 1;
        state.inodes.insert(inode, Inode::default());
        state.change_names(NameChange::Link { name: name.to_string(), inode })?;
        Ok(self.handle(inode, state.boot))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        let inode = state.find(from)?;
        state.change_names(NameChange::Rename { from: from.to_string(), to: to.to_string(), inode })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        let inode = state.find(name)?;
        state.change_names(NameChange::Unlink { name: name.to_string(), inode })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.lock();
        finish(&state.begin(Operation::SyncDir)?)?;
        state.durable_names = state.names.clone();
        state.name_changes.clear();
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.lock();
        Ok(state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used())))
    }

    fn location(&self) -> String {
        "memory".to_string()
    }
}

struct MemoryFile {
    disk: MemoryDisk,
    inode: u64,
    boot: u64,
}

impl MemoryFile {
    /// The state, unless the machine has crashed since the file was opened.
    fn lock(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock();
        if state.boot == self.boot { Ok(state) } else { Err(power_is_off()) }
    }
}

impl DiskFile for MemoryFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock()?;
        match state.begin(Operation::Write) {
            Ok(verdict) => {
                state.write(self.inode, offset as usize, bytes)?;
                finish(&verdict)
            }
            Err(error) if state.power == Some(0) => Err(error),
            Err(error) => {
                state.write(self.inode, offset as usize, &bytes[..bytes.len() / 2])?;
                Err(error)
            }
        }
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut state = self.lock()?;
        state.begin(Operation::Read)?;
        let inode = state.inodes.get(&self.inode).ok_or_else(power_is_off)?;
        let found = inode.visible.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.lock()?;
        let verdict = state.begin(Operation::Sync);
        let power = state.power;
        let inode = state.inodes.get_mut(&self.inode).ok_or_else(power_is_off)?;
        match verdict {
            Ok(Verdict::Go) => {
                for (offset, bytes) in inode.unsynced.drain(..) {
                    put(&mut inode.durable, offset, &bytes);
                }
                Ok(())
            }
            Ok(Verdict::LastGasp) => Err(power_is_off()),
            Err(error) => {
                if power != Some(0) {
                    inode.unsynced.clear();
                }
                Err(error)
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.lock()?;
        Ok(state.inodes.get(&self.inode).ok_or_else(power_is_off)?.visible.len() as u64)
    }

    fn allocate_zeroed(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock()?;
        let verdict = state.begin(Operation::Allocate)?;
        state.write(self.inode, 0, &vec![0; len as usize])?;
        finish(&verdict)
    }
}
