//! The options that change a plan, as they are written on a command line and in the list of regressions.

use clap::{Args, Parser};

use crate::history::Micros;
use crate::plan::{Overrides, SECOND};

/// What is changed about the plan a seed draws.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "What is changed about the plans that seeds draw")]
pub struct PlanArguments {
    /// Founding nodes
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=63))]
    nodes: Option<u64>,
    /// Time with faults, in virtual seconds [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Leave out these kinds of faults, shapes of cuts, misbehaviours of the network
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    without: Vec<String>,
    /// Have these in every seed, and no others
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave out these faults of the schedule, counted after all of the above
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    drop_faults: Vec<usize>,
    /// Leave out these workloads
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    drop_workloads: Vec<String>,
    /// A perfect network, but for cuts
    #[arg(long)]
    quiet_network: bool,
    /// Fast disks, but for scheduled faults
    #[arg(long)]
    fast_disks: bool,
}

impl From<PlanArguments> for Overrides {
    fn from(given: PlanArguments) -> Overrides {
        Overrides {
            nodes: given.nodes,
            safety: given.seconds.map(|seconds: u64| -> Micros { seconds * SECOND }),
            without: given.without,
            only: given.only,
            drop_faults: given.drop_faults,
            drop_workloads: given.drop_workloads,
            quiet_network: given.quiet_network,
            fast_disks: given.fast_disks,
        }
    }
}

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    plan: PlanArguments,
}

/// Reads options as [`Overrides::arguments`] writes them.
pub fn parse(line: &str) -> Result<Overrides, clap::Error> {
    Line::try_parse_from(line.split_whitespace()).map(|line| line.plan.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command a failure prints must mean the run that failed.
    #[test]
    fn what_is_printed_is_read_back_as_the_same() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
        let overrides = Overrides {
            nodes: Some(3),
            safety: Some(20 * SECOND),
            without: names(&["crash", "ring"]),
            only: names(&["wipe"]),
            drop_faults: vec![1, 4],
            drop_workloads: names(&["leases"]),
            quiet_network: true,
            fast_disks: true,
        };
        assert_eq!(parse(&overrides.arguments()).unwrap(), overrides);
        assert_eq!(parse("").unwrap(), Overrides::default());
        assert!(parse("--wrong").is_err());
    }
}
