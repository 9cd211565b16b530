//! One page of the tree: its header, its elements, and whether they make sense.
//!
//! A page is checked as a whole when it is parsed: all elements lie inside it, none overlap, keys ascend.
//! After that, reading it cannot fail. A page longer than one unit has its overflow right behind it.
//!
//! Not here: whether pages fit together (`tree_reader`).

use std::ops::Range;

use crate::error::ReadError;

/// Bytes before a page's elements.
pub(crate) const PAGE_HEADER_BYTES: usize = 16;
/// Bytes of an element, of either kind, without its key and value.
pub(crate) const ELEMENT_BYTES: usize = 16;
/// The most bytes one page may have with its overflow. etcd refuses requests of more than a few megabytes
/// unless told otherwise, and a page holds a handful of such values at most.
pub(crate) const PAGE_RUN_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The longest key bbolt takes.
pub(crate) const KEY_BYTES_MAX: usize = 32 * 1024;
/// Marks an element of a leaf whose value is a bucket.
pub(crate) const BUCKET_FLAG: u32 = 1;

/// What a page is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    Branch,
    Leaf,
    Header,
    Freelist,
}

impl PageKind {
    fn flags(self) -> u16 {
        match self {
            PageKind::Branch => 0x01,
            PageKind::Leaf => 0x02,
            PageKind::Header => 0x04,
            PageKind::Freelist => 0x10,
        }
    }
}

/// The beginning of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageHeader {
    pub(crate) id: u64,
    flags: u16,
    count: u16,
    /// How many more pages this one runs over.
    pub(crate) overflow: u32,
}

impl PageHeader {
    pub(crate) fn parse(bytes: &[u8; PAGE_HEADER_BYTES]) -> PageHeader {
        let [a, b, c, d, e, f, g, h, flags @ .., n0, n1, o0, o1, o2, o3] = *bytes;
        PageHeader {
            id: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            flags: u16::from_le_bytes(flags),
            count: u16::from_le_bytes([n0, n1]),
            overflow: u32::from_le_bytes([o0, o1, o2, o3]),
        }
    }
}

pub(crate) fn encode_page_header(id: u64, kind: PageKind, count: u16, overflow: u32) -> [u8; PAGE_HEADER_BYTES] {
    let mut bytes = [0; PAGE_HEADER_BYTES];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..10].copy_from_slice(&kind.flags().to_le_bytes());
    bytes[10..12].copy_from_slice(&count.to_le_bytes());
    bytes[12..].copy_from_slice(&overflow.to_le_bytes());
    bytes
}

/// A page of the tree with its overflow, checked.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    pub(crate) id: u64,
    pub(crate) kind: PageKind,
    /// How many pages of the file it takes.
    pub(crate) run_pages: u64,
    elements: Vec<Element>,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Element {
    key: Range<usize>,
    /// Empty in a branch.
    value: Range<usize>,
    /// Of a leaf.
    flags: u32,
    /// Of a branch.
    child: u64,
}

impl Page {
    /// Checks the page in `bytes`, which must be the one with this id: a leaf or a branch.
    pub(crate) fn parse(id: u64, bytes: Vec<u8>) -> Result<Page, ReadError> {
        let Some(header) = bytes.first_chunk::<PAGE_HEADER_BYTES>() else {
            return Err(ReadError::damaged(id, "too short for a page"));
        };
        let header = PageHeader::parse(header);
        if header.id != id {
            return Err(ReadError::damaged(id, format!("it calls itself page {}", header.id)));
        }
        let kind = [PageKind::Branch, PageKind::Leaf]
            .into_iter()
            .find(|kind| kind.flags() == header.flags)
            .ok_or_else(|| ReadError::damaged(id, format!("not a page of a tree (flags {:#x})", header.flags)))?;
        let elements = parse_elements(kind, usize::from(header.count), &bytes)
            .map_err(|(index, what)| ReadError::damaged(id, format!("element {index}: {what}")))?;
        let run_pages = u64::from(header.overflow) + 1;
        Ok(Page { id, kind, run_pages, elements, bytes })
    }

    pub(crate) fn count(&self) -> usize {
        self.elements.len()
    }

    pub(crate) fn key(&self, index: usize) -> Option<&[u8]> {
        self.elements.get(index).map(|element| &self.bytes[element.key.clone()])
    }

    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.elements.last().map(|element| &self.bytes[element.key.clone()])
    }

    /// Key, value, and whether the value is a bucket. Of a leaf.
    pub(crate) fn entry(&self, index: usize) -> Option<(&[u8], &[u8], bool)> {
        let element = self.elements.get(index)?;
        let (key, value) = (&self.bytes[element.key.clone()], &self.bytes[element.value.clone()]);
        Some((key, value, element.flags & BUCKET_FLAG != 0))
    }

    /// The page an element leads to. Of a branch.
    pub(crate) fn child(&self, index: usize) -> Option<u64> {
        self.elements.get(index).map(|element| element.child)
    }
}

/// Where the elements' keys and values are, or the first element that makes no sense.
fn parse_elements(kind: PageKind, count: usize, bytes: &[u8]) -> Result<Vec<Element>, (usize, String)> {
    let table_end = PAGE_HEADER_BYTES + count * ELEMENT_BYTES;
    if table_end > bytes.len() {
        return Err((count, format!("{count} elements do not fit the page")));
    }
    let mut elements: Vec<Element> = Vec::with_capacity(count);
    // Data comes in the order of the elements. Were it allowed to overlap, a small file could hold many
    // large values.
    let mut free_from = table_end;
    for (index, raw) in bytes[PAGE_HEADER_BYTES..table_end].chunks_exact(ELEMENT_BYTES).enumerate() {
        let number = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let (position, key_bytes, value_bytes, flags, child) = match kind {
            PageKind::Branch => (number(0), number(4), 0, 0, u64::from(number(8)) | u64::from(number(12)) << 32),
            _ => (number(4), number(8), number(12), number(0), 0),
        };
        let fail = |what: &str| Err((index, what.to_owned()));
        let element_at = (PAGE_HEADER_BYTES + index * ELEMENT_BYTES) as u64;
        let key_from = element_at + u64::from(position);
        let value_from = key_from + u64::from(key_bytes);
        let value_to = value_from + u64::from(value_bytes);
        if key_from < free_from as u64 || value_to > bytes.len() as u64 {
            return fail("its data is outside of the page or inside another element's");
        }
        if key_bytes == 0 || key_bytes as usize > KEY_BYTES_MAX {
            return fail("the length of its key is wrong");
        }
        let (key, value) = (key_from as usize..value_from as usize, value_from as usize..value_to as usize);
        if elements.last().is_some_and(|before| bytes[before.key.clone()] >= bytes[key.clone()]) {
            return fail("its key is not above the one before it");
        }
        free_from = value.end;
        elements.push(Element { key, value, flags, child });
    }
    Ok(elements)
}
