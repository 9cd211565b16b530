//! The Huffman code of HPACK (RFC 7541, appendix B), for reading.
//!
//! The code is canonical: the lengths of its words say all there is to say. No word is shorter than five bits, so
//! four bits of input end at most one of them, and a table with a row per unfinished word and a column per four
//! bits reads a byte in two steps.

use std::sync::LazyLock;

/// The length of each byte's word, in bits.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26,
];
/// The length of the word that ends a text. It is never sent whole, but what fills the last byte are its first bits.
const END_LENGTH: u8 = 30;

/// What four bits do to an unfinished word.
#[derive(Clone, Copy)]
struct Step {
    /// The unfinished word after them; the first is none.
    next: u16,
    /// A byte whose word they ended.
    byte: Option<u8>,
    /// Whether they ended the word that is never sent.
    is_end: bool,
}

struct Table {
    steps: Vec<[Step; 16]>,
    /// Whether a text may end within this word: only if it is fewer than eight of the first bits of the end.
    may_end: Vec<bool>,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::build);

/// A tree of words while the table is made: an inner place with two ways on, or a leaf.
#[derive(Clone, Copy)]
enum Place {
    Inner([u16; 2]),
    Leaf(Option<u8>),
}

/// Where a way leads that no word takes yet; the root is nobody's child.
const NOWHERE: u16 = 0;

impl Table {
    fn build() -> Table {
        let places = Table::tree();
        let inner: Vec<usize> =
            places.iter().enumerate().filter(|(_, place)| matches!(place, Place::Inner(_))).map(|(at, _)| at).collect();
        let row_of = |place: usize| inner.iter().position(|at| *at == place).unwrap_or(0) as u16;
        let steps = inner.iter().map(|from| {
            std::array::from_fn(|bits| {
                let (mut at, mut byte, mut is_end) = (*from, None, false);
                for bit in (0..4).rev() {
                    let Place::Inner(ways) = places[at] else { continue };
                    at = usize::from(ways[bits >> bit & 1]);
                    if let Place::Leaf(ended) = places[at] {
                        (byte, is_end, at) = (ended, ended.is_none(), 0);
                    }
                }
                Step { next: row_of(at), byte, is_end }
            })
        });
        let steps = steps.collect();
        let mut may_end = vec![false; inner.len()];
        let mut at = 0;
        for _ in 0..8 {
            may_end[usize::from(row_of(at))] = true;
            let Place::Inner(ways) = places[at] else { break };
            at = usize::from(ways[1]);
        }
        Table { steps, may_end }
    }

    /// Words in the order of their lengths, and of their bytes where those are equal, follow each other as numbers.
    fn tree() -> Vec<Place> {
        let mut words: Vec<(u8, Option<u8>)> = (0..=255).map(|byte| (LENGTHS[usize::from(byte)], Some(byte))).collect();
        words.sort();
        words.push((END_LENGTH, None));
        let mut places = vec![Place::Inner([NOWHERE; 2])];
        let (mut word, mut length_before) = (0_u32, 0);
        for (length, byte) in words {
            word <<= length - length_before;
            length_before = length;
            let mut at = 0;
            for bit in (0..length).rev() {
                let way = (word >> bit & 1) as usize;
                let Place::Inner(ways) = places[at] else { break };
                let mut next = usize::from(ways[way]);
                if next == usize::from(NOWHERE) {
                    next = places.len();
                    places.push(if bit == 0 { Place::Leaf(byte) } else { Place::Inner([NOWHERE; 2]) });
                    if let Place::Inner(ways) = &mut places[at] {
                        ways[way] = next as u16;
                    }
                }
                at = next;
            }
            word += 1;
        }
        places
    }
}

/// Appends what `coded` says to `out`; nothing is returned if it is no such text, or one longer than `limit`.
pub(super) fn decode(coded: &[u8], limit: usize, out: &mut Vec<u8>) -> Option<()> {
    let table = &*TABLE;
    let (mut row, room) = (0_usize, out.len() + limit);
    for byte in coded {
        for bits in [byte >> 4, byte & 15] {
            let step = table.steps[row][usize::from(bits)];
            if step.is_end || out.len() > room {
                return None;
            }
            out.extend(step.byte);
            row = usize::from(step.next);
        }
    }
    (table.may_end[row] && out.len() <= room).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(coded: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(coded, 1000, &mut out).map(|()| out)
    }

    /// The RFC's own examples (appendix C.4 and C.6).
    #[test]
    fn texts_of_the_rfc_are_read() {
        let host = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(read(&host).unwrap(), b"www.example.com");
        assert_eq!(read(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]).unwrap(), b"no-cache");
        assert_eq!(read(&[0x64, 0x02]).unwrap(), b"302");
        let date = [
            0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04, 0x0b, 0x81, 0x66, 0xe0, 0x82,
            0xa6, 0x2d, 0x1b, 0xff,
        ];
        assert_eq!(read(&date).unwrap(), b"Mon, 21 Oct 2013 20:13:21 GMT");
    }

    /// Every byte has a word of its own, told apart from all others; a table off by one reads some text wrongly.
    #[test]
    fn every_byte_is_read_back() {
        let mut words: Vec<(u8, u16)> = (0..256).map(|byte| (LENGTHS[byte as usize], byte)).collect();
        words.sort();
        let (mut word, mut length_before) = (0_u64, 0);
        for (length, byte) in words {
            word <<= length - length_before;
            length_before = length;
            // The rest of the last byte is filled with ones.
            let fill = (8 - length % 8) % 8;
            let bits = (word << fill) | ((1 << fill) - 1);
            let bytes = bits.to_be_bytes();
            let coded = &bytes[8 - usize::from(length + fill) / 8..];
            assert_eq!(read(coded), Some(vec![byte as u8]), "byte {byte}");
            word += 1;
        }
    }

    /// What is no text must be refused, and not be read as a shorter one.
    #[test]
    fn what_is_no_text_is_refused() {
        // The end of a text, sent whole.
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff]), None);
        // Filled with a whole byte, and filled with zeros.
        assert_eq!(read(&[0x64, 0x02, 0xff]), None);
        assert_eq!(read(&[0x18]), None);
        assert_eq!(read(&[]), Some(vec![]));
        assert!(decode(&[0x64, 0x02], 2, &mut Vec::new()).is_none());
    }
}
