//! A node that lost its disk comes back as a new member at the same addresses.

use super::{Cluster, Process};

impl Cluster {
    /// Takes a stopped node out of the cluster, throws its data away and lets it join anew through
    /// another node; not started yet. Its id is another one from then on (M1, H21).
    pub fn replace_with_new_member(&mut self, node: usize) -> &mut Process {
        assert!(!self.nodes[node].is_running(), "stop the node first");
        let name = self.nodes[node].name.clone();
        let through = (node + 1) % self.nodes.len();
        let admin = self.nodes[through].admin_url();
        super::wait_for("the lost member to be removed", || {
            let removed = super::tidelock().args(["member", "remove", &name, "--admin", &admin]).output().unwrap();
            removed.status.success().then_some(())
        });
        let replaced = &mut self.nodes[node];
        std::fs::remove_dir_all(replaced.data_dir()).unwrap();
        replaced.arguments = vec!["--join".to_owned(), admin];
        replaced
    }
}
