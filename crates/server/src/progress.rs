//! Progress for the person at the terminal; silent when standard error is not one.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a bar is drawn when nothing is reported, so that it is seen to live.
const TICK: Duration = Duration::from_millis(200);

/// Something that takes a while and cannot be measured yet.
pub(crate) fn spinner(doing: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(doing.to_owned());
    spinner.enable_steady_tick(TICK);
    spinner
}

/// Makes it a bar of so many bytes.
pub(crate) fn measure(bar: &ProgressBar, bytes: u64, doing: &str) {
    let template = "{msg:12} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} (eta {eta})";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
    bar.set_length(bytes);
    bar.set_message(doing.to_owned());
}
