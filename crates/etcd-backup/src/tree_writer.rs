//! Builds a tree of pages from entries that come in order, bottom up.
//!
//! Holds one leaf and, per level above, the branch elements of little more than a page. Several trees can
//! grow at once into one [`PageSink`].
//!
//! Invariant: every branch has two children at least. bbolt relies on it: the first deletion below a
//! branch with an only child would crash the server that restored the file.

use std::io::{self, Write};

use crate::error::{WriteError, hex};
use crate::page::{BUCKET_FLAG, ELEMENT_BYTES, KEY_BYTES_MAX, PAGE_HEADER_BYTES, PAGE_RUN_BYTES_MAX};
use crate::page::{PageKind, encode_page_header};
use crate::page_file::FIRST_TREE_PAGE;
use crate::tree_reader::BUCKET_HEADER_BYTES;

/// What we write. A server takes the page size from the file, whatever its own system's is.
pub(crate) const PAGE_BYTES: usize = 4096;
/// A bucket with a single page up to this size lives in the entry that names it, as bbolt has it.
const INLINE_BYTES_MAX: usize = PAGE_BYTES / 4;
const CHILDREN_MIN: usize = 2;

/// Takes pages in the order they become known and gives them numbers.
pub(crate) struct PageSink<W> {
    output: W,
    next: u64,
}

impl<W: Write> PageSink<W> {
    /// Leaves the two headers empty: they are known last.
    pub(crate) fn new(mut output: W) -> io::Result<PageSink<W>> {
        output.write_all(&[0; PAGE_BYTES * FIRST_TREE_PAGE as usize])?;
        Ok(PageSink { output, next: FIRST_TREE_PAGE })
    }

    /// Pages so far, the two headers included.
    pub(crate) fn pages(&self) -> u64 {
        self.next
    }

    pub(crate) fn into_output(self) -> W {
        self.output
    }

    /// Writes a page, with as much overflow as it takes.
    pub(crate) fn write(&mut self, kind: PageKind, count: usize, body: &[u8]) -> io::Result<u64> {
        let id = self.next;
        let bytes = PAGE_HEADER_BYTES + body.len();
        let pages = bytes.div_ceil(PAGE_BYTES);
        let overflow = u32::try_from(pages - 1).expect("a page's size is bounded on entry");
        let count = u16::try_from(count).expect("a page of 4 KiB has no room for more elements");
        self.output.write_all(&encode_page_header(id, kind, count, overflow))?;
        self.output.write_all(body)?;
        self.output.write_all(&[0; PAGE_BYTES][..pages * PAGE_BYTES - bytes])?;
        self.next += pages as u64;
        Ok(id)
    }
}

/// A tree under construction.
#[derive(Default)]
pub(crate) struct TreeWriter {
    leaf: Vec<LeafElement>,
    leaf_bytes: usize,
    /// From the one above the leaves upwards.
    branches: Vec<Vec<BranchElement>>,
    last_key: Vec<u8>,
}

struct LeafElement {
    flags: u32,
    key: Vec<u8>,
    value: Vec<u8>,
}

struct BranchElement {
    key: Vec<u8>,
    child: u64,
}

impl TreeWriter {
    /// Adds an entry above all others.
    pub(crate) fn push<W: Write>(
        &mut self,
        sink: &mut PageSink<W>,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<(), WriteError> {
        self.push_element(sink, LeafElement { flags: 0, key, value })
    }

    /// Adds a bucket above all others.
    pub(crate) fn push_bucket<W: Write>(
        &mut self,
        sink: &mut PageSink<W>,
        name: Vec<u8>,
        bucket: Vec<u8>,
    ) -> Result<(), WriteError> {
        self.push_element(sink, LeafElement { flags: BUCKET_FLAG, key: name, value: bucket })
    }

    fn push_element<W: Write>(&mut self, sink: &mut PageSink<W>, element: LeafElement) -> Result<(), WriteError> {
        let bytes = ELEMENT_BYTES + element.key.len() + element.value.len();
        if element.key <= self.last_key {
            return Err(WriteError::OutOfOrder { what: format!("the entry {}", hex(&element.key)) });
        }
        let limits = [
            (element.key.len(), KEY_BYTES_MAX),
            // A page's worth less, so that the page's own header fits too.
            (bytes, PAGE_RUN_BYTES_MAX - PAGE_BYTES),
        ];
        for (size, limit) in limits {
            if size > limit {
                let entry = format!("the entry {}", hex(&element.key));
                return Err(WriteError::TooLarge { entry, size: size as u64, limit: limit as u64 });
            }
        }
        if !self.leaf.is_empty() && PAGE_HEADER_BYTES + self.leaf_bytes + bytes > PAGE_BYTES {
            self.close_leaf(sink)?;
        }
        self.last_key.clone_from(&element.key);
        self.leaf_bytes += bytes;
        self.leaf.push(element);
        Ok(())
    }

    fn close_leaf<W: Write>(&mut self, sink: &mut PageSink<W>) -> io::Result<()> {
        let leaf = std::mem::take(&mut self.leaf);
        self.leaf_bytes = 0;
        let child = sink.write(PageKind::Leaf, leaf.len(), &leaf_body(&leaf))?;
        let key = leaf.into_iter().next().map(|element| element.key).unwrap_or_default();
        self.climb(sink, 0, BranchElement { key, child })
    }

    /// Adds an element to a level of branches, and closes a branch there if another one can follow it.
    fn climb<W: Write>(&mut self, sink: &mut PageSink<W>, level: usize, element: BranchElement) -> io::Result<()> {
        if level == self.branches.len() {
            self.branches.push(Vec::new());
        }
        self.branches[level].push(element);
        let fit = children_that_fit(&self.branches[level]);
        if self.branches[level].len() >= fit + CHILDREN_MIN {
            self.close_branch(sink, level, fit)?;
        }
        Ok(())
    }

    /// Writes the first elements of a level as a branch.
    fn close_branch<W: Write>(&mut self, sink: &mut PageSink<W>, level: usize, count: usize) -> io::Result<()> {
        let rest = self.branches[level].split_off(count);
        let branch = std::mem::replace(&mut self.branches[level], rest);
        let child = sink.write(PageKind::Branch, branch.len(), &branch_body(&branch))?;
        let key = branch.into_iter().next().map(|element| element.key).unwrap_or_default();
        self.climb(sink, level + 1, BranchElement { key, child })
    }

    /// Writes what is left and gives the bucket's entry for the tree above.
    pub(crate) fn finish_bucket<W: Write>(mut self, sink: &mut PageSink<W>) -> io::Result<Vec<u8>> {
        let inline = PAGE_HEADER_BYTES + self.leaf_bytes;
        if self.branches.is_empty() && inline <= INLINE_BYTES_MAX {
            let mut entry = vec![0; BUCKET_HEADER_BYTES];
            let count = u16::try_from(self.leaf.len()).expect("a small leaf has few elements");
            entry.extend_from_slice(&encode_page_header(0, PageKind::Leaf, count, 0));
            entry.extend_from_slice(&leaf_body(&self.leaf));
            return Ok(entry);
        }
        let root = self.finish(sink)?;
        let mut entry = root.to_le_bytes().to_vec();
        entry.resize(BUCKET_HEADER_BYTES, 0);
        Ok(entry)
    }

    /// Writes what is left and gives the page where the tree begins.
    pub(crate) fn finish<W: Write>(&mut self, sink: &mut PageSink<W>) -> io::Result<u64> {
        if !self.leaf.is_empty() || self.branches.is_empty() {
            self.close_leaf(sink)?;
        }
        let mut level = 0;
        loop {
            let count = self.branches[level].len();
            if level + 1 == self.branches.len() && count == 1 {
                return Ok(self.branches[level][0].child);
            }
            let fit = children_that_fit(&self.branches[level]);
            if count > fit && count - CHILDREN_MIN >= CHILDREN_MIN {
                self.close_branch(sink, level, count - CHILDREN_MIN)?;
            }
            let count = self.branches[level].len();
            if count > 0 {
                self.close_branch(sink, level, count)?;
            }
            level += 1;
        }
    }
}

/// How many of the elements make up a page; never too few for a branch, even if their keys are huge.
fn children_that_fit(elements: &[BranchElement]) -> usize {
    let mut bytes = PAGE_HEADER_BYTES;
    let fitting = elements.iter().take_while(|element| {
        bytes += ELEMENT_BYTES + element.key.len();
        bytes <= PAGE_BYTES
    });
    fitting.count().max(CHILDREN_MIN)
}

fn leaf_body(elements: &[LeafElement]) -> Vec<u8> {
    let mut body = Vec::new();
    // Positions count from the element they stand in.
    let mut data_at = elements.len() * ELEMENT_BYTES;
    for (index, element) in elements.iter().enumerate() {
        let position = data_at - index * ELEMENT_BYTES;
        for number in [element.flags as usize, position, element.key.len(), element.value.len()] {
            body.extend_from_slice(&size(number).to_le_bytes());
        }
        data_at += element.key.len() + element.value.len();
    }
    for element in elements {
        body.extend_from_slice(&element.key);
        body.extend_from_slice(&element.value);
    }
    body
}

fn branch_body(elements: &[BranchElement]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut data_at = elements.len() * ELEMENT_BYTES;
    for (index, element) in elements.iter().enumerate() {
        body.extend_from_slice(&size(data_at - index * ELEMENT_BYTES).to_le_bytes());
        body.extend_from_slice(&size(element.key.len()).to_le_bytes());
        body.extend_from_slice(&element.child.to_le_bytes());
        data_at += element.key.len();
    }
    for element in elements {
        body.extend_from_slice(&element.key);
    }
    body
}

fn size(number: usize) -> u32 {
    u32::try_from(number).expect("a page's size is bounded on entry")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;
    use crate::file_header::{FileHeader, NO_FREELIST};
    use crate::page_file::PageFile;
    use crate::tree_reader::{BucketRoot, SeenPages, Walk};

    type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

    fn write(entries: &Entries) -> PageFile<Cursor<Vec<u8>>> {
        let mut sink = PageSink::new(Vec::new()).unwrap();
        let mut tree = TreeWriter::default();
        for (key, value) in entries {
            tree.push(&mut sink, key.clone(), value.clone()).unwrap();
        }
        let root = tree.finish(&mut sink).unwrap();
        let pages = sink.pages();
        let mut file = sink.into_output();
        let header = FileHeader { page_bytes: PAGE_BYTES, root, freelist: NO_FREELIST, pages, transaction: 2 };
        file[..PAGE_BYTES].copy_from_slice(&header.encode(0));
        let length = file.len() as u64;
        PageFile::open(Cursor::new(file), length).unwrap()
    }

    fn read(file: &mut PageFile<Cursor<Vec<u8>>>) -> Entries {
        let mut walk = Walk::new(BucketRoot::Page(file.root()), SeenPages::none_of(file.pages()));
        let mut entries = Entries::new();
        while let Some(entry) = walk.next(file).unwrap() {
            entries.insert(entry.key, entry.value);
        }
        entries
    }

    /// Children of the branch with the fewest, and levels of the tree.
    fn shape(file: &mut PageFile<Cursor<Vec<u8>>>, page: u64) -> (usize, usize) {
        let page = file.page(page).unwrap();
        let mut shape = (usize::MAX, 1);
        for child in (0..page.count()).filter_map(|index| page.child(index).filter(|&child| child != 0)) {
            let (children, levels) = self::shape(file, child);
            shape = (shape.0.min(page.count()).min(children), shape.1.max(levels + 1));
        }
        shape
    }

    /// Counts just above what fills a branch are where an only child would appear, on each level.
    #[test]
    fn no_branch_has_an_only_child_however_many_entries_there_are() {
        // Two elements of this size make a leaf, eleven a branch, so 300 entries are three levels of branches.
        let key = |number: u32| [&number.to_be_bytes()[..], &[7; 350]].concat();
        let mut deepest = 0;
        for count in 0..300 {
            let entries: Entries = (0..count).map(|number| (key(number), vec![1; 1500])).collect();
            let mut file = write(&entries);
            let root = file.root();
            let (fewest, levels) = shape(&mut file, root);
            assert!(fewest >= 2, "{count} entries");
            assert_eq!(read(&mut file), entries);
            deepest = deepest.max(levels);
        }
        assert_eq!(deepest, 4, "the test reaches the levels it is about");
    }

    /// A million changes are four levels: three of branches with ordinary keys.
    #[test]
    fn memory_held_for_a_tree_does_not_grow_with_it() {
        let mut sink = PageSink::new(std::io::sink()).unwrap();
        let mut tree = TreeWriter::default();
        for number in 0u64..1_000_000 {
            tree.push(&mut sink, number.to_be_bytes().to_vec(), vec![0; 100]).unwrap();
            let held: usize = tree.branches.iter().map(Vec::len).sum();
            assert!(tree.leaf.len() < 40 && held < 4 * 180, "{} and {held} at {number}", tree.leaf.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Sizes of all kinds, from inside a page to several, and keys so long that a branch overflows.
        #[test]
        fn any_entries_come_back_as_they_were_written(
            sizes in proptest::collection::vec((0usize..3000, prop_oneof![4 => 0usize..200, 1 => 0usize..20_000]), 0..120)
        ) {
            let entries: Entries = sizes
                .iter()
                .enumerate()
                .map(|(number, &(key, value))| {
                    ([&(number as u32).to_be_bytes()[..], &vec![9; key]].concat(), vec![number as u8; value])
                })
                .collect();
            let mut file = write(&entries);
            let root = file.root();
            prop_assert!(shape(&mut file, root).0 >= 2);
            prop_assert_eq!(read(&mut file), entries);
        }
    }
}
