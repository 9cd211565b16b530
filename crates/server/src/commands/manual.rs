//! `tidelock completions` and `tidelock man`: made from the same description as `--help`, so they never differ from it.

use std::io::Write as _;
use std::path::Path;

use clap::CommandFactory as _;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::failure::Failure;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidelock", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    match &args.dir {
        None => Ok(std::io::stdout().lock().write_all(&page(&command, "tidelock")?)?),
        Some(dir) => write_pages(&command, "tidelock", dir),
    }
}

fn page(command: &clap::Command, name: &str) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut page)?;
    Ok(page)
}

fn write_pages(command: &clap::Command, name: &str, dir: &Path) -> Result<(), Failure> {
    let file = dir.join(format!("{name}.1"));
    let failed = |error: std::io::Error| Failure::new(format!("{} cannot be written: {error}", file.display()));
    std::fs::write(&file, page(command, name)?).map_err(failed)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        write_pages(sub, &format!("{name}-{}", sub.get_name()), dir)?;
    }
    Ok(())
}
