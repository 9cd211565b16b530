//! What becomes of a setting of another system, when a node stands in that system's place.

/// Its fate, in a table of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is a setting of ours.
    Honoured,
    /// Nothing; the text says why that does no harm.
    NoEffect(&'static str),
    /// The node does not start, unless the value asks for nothing.
    Refused {
        /// Values that ask for nothing, in small letters.
        harmless: &'static [&'static str],
        /// What to do instead.
        instead: &'static str,
    },
}
