//! What may break a rule, up to how far, and why. A limit is a ratchet: it is set to what the file has,
//! so it can shrink but not grow, and a line that is not needed any more is a finding.

/// A file that may be longer than the rule.
pub(super) struct LongFile {
    /// Path from the root.
    pub(super) path: &'static str,
    /// Lines it may have.
    pub(super) lines: usize,
    /// Why it is better whole.
    pub(super) reason: &'static str,
}

/// A function that may be longer than the rule.
pub(super) struct LongFunction {
    /// Path from the root.
    pub(super) path: &'static str,
    /// Its name.
    pub(super) name: &'static str,
    /// Lines it may have.
    pub(super) lines: usize,
    /// Why it is better whole.
    pub(super) reason: &'static str,
}

/// Files longer than the rule.
pub(super) const LONG_FILES: &[LongFile] = &[];

/// Functions longer than the rule.
pub(super) const LONG_FUNCTIONS: &[LongFunction] = &[];
