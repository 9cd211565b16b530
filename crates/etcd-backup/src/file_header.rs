//! The first two pages of the file: how large pages are, where the tree begins, how many pages count.
//!
//! There are two so that a commit never overwrites the valid one. Each has a check of its own; the one
//! that is valid and of the later transaction is the truth. If both are broken, so is the file.

use crate::page::{PAGE_HEADER_BYTES, PageKind, encode_page_header};

/// Bytes of a page's beginning that hold all of it.
pub(crate) const FILE_HEADER_BYTES: usize = PAGE_HEADER_BYTES + BODY_BYTES;
/// Stands for "no list of free pages was written".
pub(crate) const NO_FREELIST: u64 = u64::MAX;
/// The smallest page bbolt makes anywhere; where the search for the second header begins.
pub(crate) const PAGE_BYTES_MIN: usize = 1024;
/// The largest page of any system etcd runs on.
pub(crate) const PAGE_BYTES_MAX: usize = 64 * 1024;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const BODY_BYTES: usize = 64;
const CHECKED_BYTES: usize = BODY_BYTES - 8;

/// One of the two headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) page_bytes: usize,
    /// The page where the tree of buckets begins.
    pub(crate) root: u64,
    /// Where the list of free pages is, or [`NO_FREELIST`].
    pub(crate) freelist: u64,
    /// Pages from here on are not part of the data.
    pub(crate) pages: u64,
    pub(crate) transaction: u64,
}

impl FileHeader {
    /// Reads the header at the beginning of `page`, or says why there is none.
    pub(crate) fn parse(page: &[u8]) -> Result<FileHeader, String> {
        let Some(body) = page.get(PAGE_HEADER_BYTES..FILE_HEADER_BYTES) else {
            return Err("it is too small to be one".to_owned());
        };
        let u32_at = |at: usize| u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u32_at(0) == MAGIC.swap_bytes() {
            return Err("it was written on a big-endian machine".to_owned());
        }
        if u32_at(0) != MAGIC {
            return Err("it does not begin as a bbolt database does".to_owned());
        }
        if u32_at(4) != VERSION {
            return Err(format!("its bbolt format has version {}, only {VERSION} is known", u32_at(4)));
        }
        if u64_at(CHECKED_BYTES) != fnv64a(&body[..CHECKED_BYTES]) {
            return Err("its header is damaged".to_owned());
        }
        let page_bytes = usize::try_from(u32_at(8)).unwrap_or(usize::MAX);
        if !page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) {
            return Err(format!("its pages have {page_bytes} bytes"));
        }
        Ok(FileHeader {
            page_bytes,
            root: u64_at(16),
            freelist: u64_at(32),
            pages: u64_at(40),
            transaction: u64_at(48),
        })
    }

    /// The header as page `page` of the file.
    pub(crate) fn encode(&self, page: u64) -> Vec<u8> {
        let page_bytes = u32::try_from(self.page_bytes).expect("pages have at most 64 KiB");
        let mut body = Vec::with_capacity(BODY_BYTES);
        for number in [MAGIC, VERSION, page_bytes, 0] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        // The second number is the root bucket's counter of generated keys, which etcd does not use.
        for number in [self.root, 0, self.freelist, self.pages, self.transaction] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        body.extend_from_slice(&fnv64a(&body).to_le_bytes());
        let mut bytes = encode_page_header(page, PageKind::Header, 0, 0).to_vec();
        bytes.extend_from_slice(&body);
        bytes.resize(self.page_bytes, 0);
        bytes
    }
}

/// The check bbolt uses for its headers: FNV-1a over 64 bits.
fn fnv64a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FileHeader = FileHeader { page_bytes: 4096, root: 5, freelist: 2, pages: 9, transaction: 2 };

    /// The header is the anchor of all the rest; what we write must be what we read.
    #[test]
    fn a_header_comes_back_as_it_was_written() {
        assert_eq!(FileHeader::parse(&HEADER.encode(1)), Ok(HEADER));
    }

    /// A header with a flipped bit could point anywhere; the other one must take over instead.
    #[test]
    fn a_header_with_any_bit_flipped_does_not_count() {
        let good = HEADER.encode(0);
        for bit in PAGE_HEADER_BYTES * 8..FILE_HEADER_BYTES * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::parse(&bad).is_err(), "bit {bit}");
        }
    }
}
