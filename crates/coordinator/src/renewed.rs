//! What became of leases that were to be renewed together.

use tidelock_model::LeaseId;

/// The answer about many leases: those that are not named here live on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// These do not exist (any more).
    pub gone: Vec<LeaseId>,
    /// The end of these was proposed and is not decided yet: neither renewed nor over. Ask again.
    pub ending: Vec<LeaseId>,
}
