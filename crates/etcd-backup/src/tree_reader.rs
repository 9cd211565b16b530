//! Walks a tree of pages from its smallest key to its largest.
//!
//! Holds one page per level. Every page is met at most once, keys keep to the bounds their branches
//! set, and trees are not deeper than any real one, so a walk ends after as much work as the file is
//! long, whatever is in the file.

use std::io::{Read, Seek};

use crate::error::ReadError;
use crate::page::{Page, PageKind};
use crate::page_file::PageFile;

/// Branches have two children at least, and no file has 2^48 pages.
const DEPTH_MAX: usize = 48;
/// Bytes of a bucket's entry before its inline page: the number of its root, and a counter etcd does not use.
pub(crate) const BUCKET_HEADER_BYTES: usize = 16;

/// Where a bucket's tree begins.
#[derive(Debug, Clone)]
pub(crate) enum BucketRoot {
    Page(u64),
    /// A small bucket, kept in the entry that names it.
    Inline(Box<Page>),
}

impl BucketRoot {
    /// Reads the entry that names a bucket.
    pub(crate) fn parse(entry: &[u8]) -> Result<BucketRoot, ReadError> {
        let Some((header, page)) = entry.split_at_checked(BUCKET_HEADER_BYTES) else {
            return Err(ReadError::damaged(0, "the entry of a bucket is too short"));
        };
        match u64::from_le_bytes(*header.first_chunk().expect("a bucket's header has 16 bytes")) {
            0 => {
                let page = Page::parse(0, page.to_vec())?;
                match page.kind {
                    PageKind::Leaf => Ok(BucketRoot::Inline(Box::new(page))),
                    _ => Err(ReadError::damaged(0, "a small bucket that is not a leaf")),
                }
            }
            root => Ok(BucketRoot::Page(root)),
        }
    }
}

/// Which pages were met.
#[derive(Debug)]
pub(crate) struct SeenPages(Vec<u64>);

impl SeenPages {
    pub(crate) fn none_of(pages: u64) -> SeenPages {
        // A bit for every page that is really there: 32 KiB of memory for a file of a gibibyte.
        SeenPages(vec![0; (pages / 64 + 1) as usize])
    }

    /// Whether this is the first time.
    fn insert(&mut self, page: u64) -> bool {
        let Some(word) = self.0.get_mut((page / 64) as usize) else { return false };
        let bit = 1 << (page % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// The same for a page with its overflow: runs that overlap would let a small file cost much.
    fn insert_run(&mut self, page: &Page) -> bool {
        (page.id..page.id.saturating_add(page.run_pages)).all(|id| self.insert(id))
    }
}

/// An entry of a leaf.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) is_bucket: bool,
}

/// A walk under way.
#[derive(Debug)]
pub(crate) struct Walk {
    levels: Vec<Level>,
    start: Option<BucketRoot>,
    seen: SeenPages,
}

#[derive(Debug)]
struct Level {
    page: Page,
    next: usize,
    /// Every key below is less than this.
    upper: Option<Vec<u8>>,
}

impl Walk {
    /// Starts before the first entry. Pages in `seen` belong to something else and must not be met.
    pub(crate) fn new(root: BucketRoot, seen: SeenPages) -> Walk {
        Walk { levels: Vec::new(), start: Some(root), seen }
    }

    /// What was met, for a walk over another tree of the same file.
    pub(crate) fn into_seen(self) -> SeenPages {
        self.seen
    }

    /// The next entry, or none at the end.
    pub(crate) fn next<R: Read + Seek>(&mut self, file: &mut PageFile<R>) -> Result<Option<Entry>, ReadError> {
        if let Some(root) = self.start.take() {
            match root {
                BucketRoot::Inline(page) => self.descend(*page, None, None)?,
                BucketRoot::Page(id) => self.enter(file, id, None, None)?,
            }
        }
        while let Some(level) = self.levels.last_mut() {
            let index = level.next;
            if index >= level.page.count() {
                self.levels.pop();
                continue;
            }
            level.next += 1;
            if let Some((key, value, is_bucket)) = level.page.entry(index).filter(|_| level.page.kind == PageKind::Leaf)
            {
                return Ok(Some(Entry { key: key.to_vec(), value: value.to_vec(), is_bucket }));
            }
            let Some(child) = level.page.child(index) else { continue };
            let lower = level.page.key(index).map(<[u8]>::to_vec);
            let upper = level.page.key(index + 1).map(<[u8]>::to_vec).or_else(|| level.upper.clone());
            self.enter(file, child, lower.as_deref(), upper)?;
        }
        Ok(None)
    }

    fn enter<R: Read + Seek>(
        &mut self,
        file: &mut PageFile<R>,
        id: u64,
        lower: Option<&[u8]>,
        upper: Option<Vec<u8>>,
    ) -> Result<(), ReadError> {
        let page = file.page(id)?;
        if !self.seen.insert_run(&page) {
            return Err(ReadError::damaged(id, "two references lead to it"));
        }
        self.descend(page, lower, upper)
    }

    fn descend(&mut self, page: Page, lower: Option<&[u8]>, upper: Option<Vec<u8>>) -> Result<(), ReadError> {
        if self.levels.len() >= DEPTH_MAX {
            return Err(ReadError::damaged(page.id, "the tree is deeper than any real one"));
        }
        if page.kind == PageKind::Branch && page.count() == 0 {
            return Err(ReadError::damaged(page.id, "a branch that leads nowhere"));
        }
        if lower.zip(page.key(0)).is_some_and(|(lower, first)| first < lower)
            || upper.as_deref().zip(page.last_key()).is_some_and(|(upper, last)| last >= upper)
        {
            return Err(ReadError::damaged(page.id, "its keys belong elsewhere in the tree"));
        }
        self.levels.push(Level { page, next: 0, upper });
        Ok(())
    }
}

/// The largest key of a tree. Looks along the right edge only: whether the tree is sound, a walk tells.
pub(crate) fn last_key<R: Read + Seek>(
    file: &mut PageFile<R>,
    root: &BucketRoot,
) -> Result<Option<Vec<u8>>, ReadError> {
    let mut page = match root {
        BucketRoot::Page(id) => file.page(*id)?,
        BucketRoot::Inline(page) => (**page).clone(),
    };
    for _ in 0..DEPTH_MAX {
        if page.kind == PageKind::Leaf {
            return Ok(page.last_key().map(<[u8]>::to_vec));
        }
        let Some(child) = page.count().checked_sub(1).and_then(|last| page.child(last)) else {
            return Err(ReadError::damaged(page.id, "a branch that leads nowhere"));
        };
        page = file.page(child)?;
    }
    Err(ReadError::damaged(page.id, "the tree is deeper than any real one"))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::file_header::{FileHeader, NO_FREELIST};
    use crate::page::encode_page_header;

    const PAGE: usize = 4096;

    /// A page by hand: elements of two words of their own, a key each, and nothing checked.
    fn page(id: u64, kind: PageKind, overflow: u32, elements: &[(&[u8], u64)]) -> Vec<u8> {
        let mut bytes = encode_page_header(id, kind, elements.len() as u16, overflow).to_vec();
        let mut data_at = elements.len() * 16;
        for (index, (key, child)) in elements.iter().enumerate() {
            let (position, length) = ((data_at - index * 16) as u32, key.len() as u32);
            if kind == PageKind::Branch {
                bytes.extend([position, length].map(u32::to_le_bytes).as_flattened());
                bytes.extend(child.to_le_bytes());
            } else {
                bytes.extend([0, position, length, 0].map(u32::to_le_bytes).as_flattened());
            }
            data_at += key.len();
        }
        elements.iter().for_each(|(key, _)| bytes.extend_from_slice(key));
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        bytes
    }

    /// What a walk over a file of these pages, from page 2 on, comes to.
    fn walk(pages: &[Vec<u8>]) -> Result<usize, String> {
        let count = 2 + pages.iter().map(|page| page.len() / PAGE).sum::<usize>() as u64;
        let header = FileHeader { page_bytes: PAGE, root: 2, freelist: NO_FREELIST, pages: count, transaction: 0 };
        let bytes = [header.encode(0), header.encode(1), pages.concat()].concat();
        let length = bytes.len() as u64;
        let mut file = PageFile::open(Cursor::new(bytes), length).map_err(|error| error.to_string())?;
        let mut walk = Walk::new(BucketRoot::Page(2), SeenPages::none_of(file.pages()));
        let mut entries = 0;
        loop {
            match walk.next(&mut file) {
                Ok(Some(_)) => entries += 1,
                Ok(None) => return Ok(entries),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// The pages above make a tree if nothing is wrong with them, so the refusals below are about what they say.
    #[test]
    fn a_sound_tree_is_walked_to_its_end() {
        let root = page(2, PageKind::Branch, 0, &[(b"a", 3), (b"c", 4)]);
        let left = page(3, PageKind::Leaf, 0, &[(b"a", 0), (b"b", 0)]);
        let right = page(4, PageKind::Leaf, 0, &[(b"c", 0)]);
        assert_eq!(walk(&[root, left, right]), Ok(3));
        assert_eq!(walk(&[page(2, PageKind::Leaf, 0, &[])]), Ok(0));
    }

    /// A file that refers to itself would keep an import busy for ever.
    #[test]
    fn a_tree_that_bites_its_tail_is_refused() {
        let root = page(2, PageKind::Branch, 0, &[(b"a", 2)]);
        assert!(walk(&[root]).unwrap_err().contains("two references"));
        let root = page(2, PageKind::Branch, 0, &[(b"a", 3), (b"b", 3)]);
        assert!(walk(&[root, page(3, PageKind::Leaf, 0, &[])]).unwrap_err().contains("two references"));
    }

    /// Pages inside the overflow of others would let a small file cost the square of its size.
    #[test]
    fn pages_that_overlap_are_refused() {
        let root = page(2, PageKind::Branch, 0, &[(b"a", 3), (b"b", 4)]);
        let long = page(3, PageKind::Leaf, 1, &[(b"a", 0)]);
        let inside = page(4, PageKind::Leaf, 0, &[(b"b", 0)]);
        assert!(walk(&[root, long, inside]).unwrap_err().contains("two references"));
    }

    /// A chain of branches is held in memory as a whole; no real tree is deep.
    #[test]
    fn a_tree_of_endless_depth_is_refused() {
        let chain: Vec<Vec<u8>> = (2..200).map(|id| page(id, PageKind::Branch, 0, &[(b"a", id + 1)])).collect();
        assert!(walk(&chain).unwrap_err().contains("deeper"));
    }

    /// Keys in the wrong place mean that pages of different times were mixed: revisions would come twice or never.
    #[test]
    fn keys_in_the_wrong_place_are_refused() {
        for leaf in [&[(&b"a"[..], 0)][..], &[(&b"d"[..], 0)], &[(&b"c"[..], 0), (&b"b"[..], 0)]] {
            let root = page(2, PageKind::Branch, 0, &[(b"b", 3), (b"d", 4)]);
            let pages = [root, page(3, PageKind::Leaf, 0, leaf), page(4, PageKind::Leaf, 0, &[(b"d", 0)])];
            let refusal = walk(&pages).unwrap_err();
            assert!(refusal.contains("elsewhere") || refusal.contains("not above"), "{refusal}");
        }
    }

    /// A reference that leaves the file, an overflow that does, a page under another's number: all damage.
    #[test]
    fn references_that_lead_nowhere_are_refused() {
        let refused = |pages: &[Vec<u8>], why: &str| {
            let refusal = walk(pages).unwrap_err();
            assert!(refusal.contains(why), "{refusal}");
        };
        refused(&[page(2, PageKind::Branch, 0, &[(b"a", 9)])], "outside of the file");
        refused(&[page(2, PageKind::Branch, 0, &[(b"a", 1)])], "outside of the file");
        refused(&[page(2, PageKind::Branch, 0, &[])], "leads nowhere");
        refused(&[page(2, PageKind::Leaf, 1, &[])], "leave the file");
        refused(&[page(2, PageKind::Leaf, u32::MAX, &[])], "leave the file");
        refused(&[page(3, PageKind::Leaf, 0, &[])], "calls itself page 3");
        refused(&[page(2, PageKind::Freelist, 0, &[])], "not a page of a tree");
    }
}
