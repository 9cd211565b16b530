//! Where log lines go: standard error, standard output, files, or several of these at once.
//!
//! A place that cannot be written to is no reason to stop serving; files that cannot be opened are one not to start.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use tracing_subscriber::fmt::MakeWriter;

use crate::config::LogOutput;
use crate::failure::Failure;

/// Writes every line to all places.
#[derive(Clone)]
pub(crate) struct LogWriter(Arc<[Place]>);

enum Place {
    Stderr,
    Stdout,
    File(File),
}

impl LogWriter {
    /// Opens the files; they are appended to.
    pub(crate) fn open(outputs: &[LogOutput]) -> Result<LogWriter, Failure> {
        let place = |output: &LogOutput| match output {
            LogOutput::Stderr => Ok(Place::Stderr),
            LogOutput::Stdout => Ok(Place::Stdout),
            LogOutput::File(path) => {
                File::options().create(true).append(true).open(path).map(Place::File).map_err(|error| {
                    Failure::new(format!("cannot write the log to {}: {error}", path.display()))
                        .hint("give stderr, stdout, or a file that can be written to --log-outputs")
                })
            }
        };
        Ok(LogWriter(outputs.iter().map(place).collect::<Result<_, _>>()?))
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        self.clone()
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        for place in &*self.0 {
            let _ = match place {
                Place::Stderr => io::stderr().lock().write_all(line),
                Place::Stdout => io::stdout().lock().write_all(line),
                Place::File(file) => (&*file).write_all(line),
            };
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
