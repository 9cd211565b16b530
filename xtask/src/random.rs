//! Random choices: the load generator's, so that both take the same keys.

pub(crate) use tidelock_load::Random;
