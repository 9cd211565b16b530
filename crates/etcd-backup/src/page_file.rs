//! The file as pages that can be fetched by number.
//!
//! Knows which pages exist and refuses others, so a reference that leads outside costs nothing.

use std::io::{Read, Seek, SeekFrom};

use crate::error::ReadError;
use crate::file_header::{FILE_HEADER_BYTES, FileHeader, NO_FREELIST, PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::page::{PAGE_HEADER_BYTES, PAGE_RUN_BYTES_MAX, Page, PageHeader};

/// Pages 0 and 1 are the file's headers.
pub(crate) const FIRST_TREE_PAGE: u64 = 2;

/// An open database.
#[derive(Debug)]
pub(crate) struct PageFile<R> {
    source: R,
    header: FileHeader,
}

impl<R: Read + Seek> PageFile<R> {
    /// Finds the valid header of a database of `length` bytes at the beginning of `source`.
    pub(crate) fn open(mut source: R, length: u64) -> Result<PageFile<R>, ReadError> {
        let first = header_at(&mut source, 0, length)?;
        let second = match &first {
            Ok(header) => header_at(&mut source, header.page_bytes as u64, length)?.ok(),
            Err(_) => search_second(&mut source, length)?,
        };
        let header = match (first, second) {
            (Ok(first), Some(second)) if second.transaction > first.transaction => second,
            (Ok(first), _) => first,
            (Err(_), Some(second)) => second,
            (Err(what), None) => return Err(ReadError::NotABackup { what }),
        };
        let bytes = header.pages.saturating_mul(header.page_bytes as u64);
        if bytes > length {
            let what = format!("its header speaks of {bytes} bytes, the file has {length}");
            return Err(ReadError::CutShort { what });
        }
        let inside = |page: u64| (FIRST_TREE_PAGE..header.pages).contains(&page);
        if !inside(header.root) || !(header.freelist == NO_FREELIST || inside(header.freelist)) {
            return Err(ReadError::damaged(0, "the header points outside of the file"));
        }
        Ok(PageFile { source, header })
    }

    /// The page where the tree of buckets begins.
    pub(crate) fn root(&self) -> u64 {
        self.header.root
    }

    /// Pages that are part of the data, the two headers included.
    pub(crate) fn pages(&self) -> u64 {
        self.header.pages
    }

    /// Bytes that are part of the data.
    pub(crate) fn bytes(&self) -> u64 {
        self.header.pages * self.header.page_bytes as u64
    }

    /// Fetches a page of a tree with its overflow.
    pub(crate) fn page(&mut self, id: u64) -> Result<Page, ReadError> {
        if !(FIRST_TREE_PAGE..self.header.pages).contains(&id) {
            return Err(ReadError::damaged(id, "referred to, but outside of the file"));
        }
        let mut bytes = vec![0; self.header.page_bytes];
        self.source.seek(SeekFrom::Start(id * self.header.page_bytes as u64))?;
        self.source.read_exact(&mut bytes)?;
        let header: &[u8; PAGE_HEADER_BYTES] = bytes.first_chunk().expect("a page is longer than its header");
        let overflow = u64::from(PageHeader::parse(header).overflow);
        if overflow > 0 {
            if overflow >= self.header.pages - id {
                return Err(ReadError::damaged(id, format!("its {overflow} overflow pages leave the file")));
            }
            let run = (overflow + 1) * self.header.page_bytes as u64;
            if run > PAGE_RUN_BYTES_MAX as u64 {
                let what = format!("a page of {run} bytes");
                return Err(ReadError::TooLarge { what, limit: PAGE_RUN_BYTES_MAX as u64 });
            }
            bytes.resize(run as usize, 0);
            self.source.read_exact(&mut bytes[self.header.page_bytes..])?;
        }
        Page::parse(id, bytes)
    }
}

/// Reads the header at an offset. The outer error is the disk's, the inner one the header's.
fn header_at<R: Read + Seek>(
    source: &mut R,
    offset: u64,
    length: u64,
) -> Result<Result<FileHeader, String>, ReadError> {
    let mut bytes = [0; FILE_HEADER_BYTES];
    if length < offset.saturating_add(FILE_HEADER_BYTES as u64) {
        return Ok(Err("it is too small to be one".to_owned()));
    }
    source.seek(SeekFrom::Start(offset))?;
    source.read_exact(&mut bytes)?;
    Ok(FileHeader::parse(&bytes))
}

/// With the first header gone nobody knows how long a page is: tries all lengths.
fn search_second<R: Read + Seek>(source: &mut R, length: u64) -> Result<Option<FileHeader>, ReadError> {
    let mut offset = PAGE_BYTES_MIN;
    while offset <= PAGE_BYTES_MAX {
        if let Ok(header) = header_at(source, offset as u64, length)?
            && header.page_bytes == offset
        {
            return Ok(Some(header));
        }
        offset *= 2;
    }
    Ok(None)
}
