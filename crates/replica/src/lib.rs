//! Placeholder, filled by the next step.
