//! Making a data directory: what a node is before it ever ran.

use tidelock_journal::{Disk, Journal, JournalConfig, SnapshotMeta};
use tidelock_model::{HardState, Member, MemberRole, NodeId};
use tidelock_replica::consensus::{Consensus, FOUNDING};
use tidelock_state::State;

use crate::config::Bootstrap;
use crate::identity::Identity;
use crate::node::StartError;
use crate::snapshots;

/// Makes a data directory: the identity is written last, so that a half-made one is made anew.
pub(crate) fn bootstrap<D: Disk + Clone>(
    disk: &D,
    journal: &JournalConfig,
    bootstrap: &Bootstrap,
    disk_number: u64,
) -> Result<Identity, StartError> {
    let (cluster, node, members) = match bootstrap {
        Bootstrap::Found { cluster, node, members } => {
            found(disk, journal, members)?;
            (*cluster, *node, members.clone())
        }
        Bootstrap::Join { cluster, node, members } => (*cluster, *node, members.clone()),
    };
    let identity = Identity { cluster, node, disk: disk_number, first_members: members };
    identity.write(disk)?;
    Ok(identity)
}

/// Gives a founder the state all founders start with: the members, and nothing else.
fn found<D: Disk + Clone>(disk: &D, journal: &JournalConfig, members: &[Member]) -> Result<(), StartError> {
    let mut state = State::new();
    state.bootstrap_members(members.to_vec());
    state.apply_nothing(FOUNDING.0);
    found_with(disk, journal, &state, members)
}

/// Gives a founder this state, which must be the same for all of them.
pub(crate) fn found_with<D: Disk + Clone>(
    disk: &D,
    journal: &JournalConfig,
    state: &State,
    members: &[Member],
) -> Result<(), StartError> {
    let (mut journal, _) = Journal::open(disk.clone(), journal.clone())?;
    let (index, term) = FOUNDING;
    let roles: Vec<(NodeId, MemberRole)> = members.iter().map(|member| (member.id, member.role)).collect();
    let meta = SnapshotMeta { index, term, extra: Consensus::voters_of(&roles) };
    let file = format!("{}/{}", disk.location(), meta.name().file_name());
    snapshots::write_whole(disk, state, meta).map_err(|error| StartError::Snapshot { file, error: error.into() })?;
    let hard_state = HardState { term, vote: NodeId(0), commit: index };
    journal.restart_from_snapshot(index, term, hard_state).map_err(|error| StartError::Io(std::io::Error::other(error)))
}
