//! Looking at, and damaging, the files of a node that does not run.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::Process;

/// A file of a stopped node's data directory.
pub struct DataFile {
    pub name: String,
    path: PathBuf,
}

impl Process {
    /// The newest file of a stopped node whose name begins with `prefix`.
    pub fn newest_file(&self, prefix: &str) -> DataFile {
        assert!(!self.is_running(), "stop the node first");
        let files = std::fs::read_dir(self.data_dir()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let name = names.filter(|name| name.starts_with(prefix)).max().expect("the node has such a file");
        DataFile { path: self.data_dir().join(&name), name }
    }
}

impl DataFile {
    /// Where its content ends: segments are filled up with zeros.
    pub fn used(&self) -> u64 {
        let bytes = std::fs::read(&self.path).unwrap();
        bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
    }

    /// Turns one bit over; doing it twice mends it.
    pub fn flip(&self, offset: u64) {
        let file = OpenOptions::new().read(true).write(true).open(&self.path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
    }

    /// Writes over what is there.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }
}
