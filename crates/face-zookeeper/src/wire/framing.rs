//! Frames: how many bytes belong together, and how many are too many.
//!
//! Only the first four bytes of a connection may be a four-letter word. Later the same bytes are a length, far
//! too long, and end the connection, as they do in ZooKeeper.

use bytes::{Buf, Bytes, BytesMut};

/// ZooKeeper's default for `jute.maxbuffer`. A frame of exactly this length is still read.
pub const DEFAULT_MAX_FRAME: usize = 0xf_ffff;

/// The bytes of a frame's length.
const PREFIX: usize = 4;

/// Makes the list of words and their spelling out of one table.
macro_rules! words {
    ($($word:ident = $text:literal,)*) => {
        /// A command of operators, sent in place of a session: answered with text, then the connection ends.
        #[allow(missing_docs, reason = "the names are ZooKeeper's")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FourLetterWord {
            $($word,)*
        }

        impl FourLetterWord {
            /// All of them.
            pub const ALL: &[FourLetterWord] = &[$(FourLetterWord::$word,)*];

            /// The word as operators type it and as the whitelist names it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(FourLetterWord::$word => $text,)*
                }
            }
        }
    };
}

words! {
    Conf = "conf",
    Cons = "cons",
    Crst = "crst",
    Dirs = "dirs",
    Dump = "dump",
    Envi = "envi",
    Gtmk = "gtmk",
    Hash = "hash",
    Isro = "isro",
    Mntr = "mntr",
    Ruok = "ruok",
    Srst = "srst",
    Srvr = "srvr",
    Stat = "stat",
    Stmk = "stmk",
    Wchc = "wchc",
    Wchp = "wchp",
    Wchs = "wchs",
}

impl FourLetterWord {
    /// The word that these bytes spell. Only lower case counts.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 4]) -> Option<FourLetterWord> {
        Self::ALL.iter().copied().find(|word| word.as_str().as_bytes() == bytes)
    }
}

/// What the first four bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// An operator's command. For `stmk`, eight more bytes are its argument.
    Word(FourLetterWord),
    /// The length of the frame that holds the `ConnectRequest`.
    Frame(usize),
}

/// A length that ends the connection, without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLength {
    /// No frame has less than no bytes.
    #[error("a frame of {0} bytes")]
    Negative(i32),
    /// More than `jute.maxbuffer`.
    #[error("a frame of {length} bytes, more than the {limit} allowed")]
    TooLong {
        /// What the client wants to send.
        length: usize,
        /// What it may.
        limit: usize,
    },
}

/// Says what a fresh connection's first four bytes are.
///
/// # Errors
/// They are neither a word nor a length within the limit.
pub fn opening(first: [u8; 4], max_frame: usize) -> Result<Opening, BadLength> {
    match FourLetterWord::from_bytes(first) {
        Some(word) => Ok(Opening::Word(word)),
        None => frame_length(first, max_frame).map(Opening::Frame),
    }
}

/// The length that four bytes in front of a frame say.
///
/// # Errors
/// It is negative or beyond the limit: the connection ends.
pub fn frame_length(prefix: [u8; 4], max_frame: usize) -> Result<usize, BadLength> {
    let length = i32::from_be_bytes(prefix);
    match usize::try_from(length) {
        Err(_) => Err(BadLength::Negative(length)),
        Ok(length) if length > max_frame => Err(BadLength::TooLong { length, limit: max_frame }),
        Ok(length) => Ok(length),
    }
}

/// Takes the next whole frame, without its length, out of the bytes that came so far; `None` means that more
/// must come. Nothing is reserved for a frame that was only announced.
///
/// # Errors
/// The length is bad: the connection ends. The bytes are left as they are.
pub fn take_frame(buffer: &mut BytesMut, max_frame: usize) -> Result<Option<Bytes>, BadLength> {
    let Some(prefix) = buffer.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = frame_length(*prefix, max_frame)?;
    if buffer.len() - PREFIX < length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(length).freeze()))
}
