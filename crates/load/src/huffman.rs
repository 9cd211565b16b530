//! HPACK's Huffman code (RFC 7541, appendix B), for reading only.
//!
//! The code is canonical: codes of one length follow each other in the order of their symbols, and the first of a length
//! follows the last of the length before, with zeros behind it. So the lengths say everything.

use std::sync::OnceLock;

/// Bits of the code of each byte; the last is the end of a string, which may not occur in one.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];
/// The longest code.
const BITS_MAX: usize = 30;
/// The symbol that ends a string.
const END: u16 = 256;

/// For each length: its first code, and where its symbols begin in `symbols`.
struct Code {
    first: [u32; BITS_MAX + 2],
    offset: [usize; BITS_MAX + 2],
    symbols: Vec<u16>,
}

fn code() -> &'static Code {
    static CODE: OnceLock<Code> = OnceLock::new();
    CODE.get_or_init(|| {
        let mut code = Code { first: [0; BITS_MAX + 2], offset: [0; BITS_MAX + 2], symbols: Vec::new() };
        let mut next = 0;
        for bits in 1..=BITS_MAX {
            next <<= 1;
            (code.first[bits], code.offset[bits]) = (next, code.symbols.len());
            let of_this_length = (0..=END).filter(|symbol| usize::from(LENGTHS[usize::from(*symbol)]) == bits);
            code.symbols.extend(of_this_length);
            next += (code.symbols.len() - code.offset[bits]) as u32;
        }
        code.offset[BITS_MAX + 1] = code.symbols.len();
        code
    })
}

/// The string that `bytes` encode; nothing if they encode none.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let code = code();
    let mut text = Vec::with_capacity(bytes.len() * 2);
    let (mut value, mut bits) = (0u32, 0usize);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| (byte >> at) & 1)) {
        value = value << 1 | u32::from(bit);
        bits += 1;
        if bits > BITS_MAX {
            return None;
        }
        let count = code.offset[bits + 1] - code.offset[bits];
        let Some(at) = value.checked_sub(code.first[bits]).map(|at| at as usize).filter(|at| *at < count) else {
            continue;
        };
        match code.symbols[code.offset[bits] + at] {
            END => return None,
            symbol => text.push(symbol as u8),
        }
        (value, bits) = (0, 0);
    }
    // What is left pads the last byte: fewer than eight ones.
    (bits < 8 && value == (1 << bits) - 1).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7541, C.4 and C.6: a wrong table would turn every refusal into noise.
    #[test]
    fn the_examples_of_the_specification_are_read() {
        for (bytes, text) in [
            (&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..], "www.example.com"),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x64, 0x02], "302"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f], "custom-key"),
            (&[], ""),
        ] {
            assert_eq!(decode(bytes).as_deref(), Some(text.as_bytes()), "{text}");
        }
    }

    /// Whatever a broken server sends, the answer is "this is no string" and not a panic or a long loop.
    #[test]
    fn what_is_no_string_is_refused() {
        assert_eq!(decode(&[0xff; 4]), None, "the end of a string inside of it");
        assert_eq!(decode(&[0x64, 0x02, 0xff]), None, "a whole byte of padding");
        assert_eq!(decode(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbe]), None, "padding that is not all ones");
    }
}
