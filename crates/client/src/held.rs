//! What is alike for all that is held: how long it outlives this process, whether it is still held, and how something
//! that nobody uses is forgotten.
//!
//! Each time to live is a session of its own, shared by everything of this client that has the same one.

use tidelock_native_api::v1::{self, Kind, request::Op};

use crate::client::Client;
use crate::error::Error;

/// `ttl` for a handle; the field that has it is named.
macro_rules! ttl_setting {
    ($type:ty, $($field:ident).+) => {
        impl $type {
            /// How long what is held outlives this process if that dies or is cut off; the client's unless told.
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.$($field).+ = Some(ttl);
                self
            }
        }
    };
}
pub(crate) use ttl_setting;

/// `check` and `lost` for something that is a possession.
macro_rules! may_be_lost {
    ($type:ty) => {
        impl $type {
            /// Whether it may still be relied on, at this very moment; see [`crate::Guard::check`].
            pub fn check(&self) -> Result<(), crate::error::Error> {
                self.possession.session().check()
            }

            /// Waits until it is lost, and tells how. For `tokio::select!` beside the work.
            pub async fn lost(&self) -> crate::error::Error {
                self.possession.session().lost().await
            }
        }
    };
}
pub(crate) use may_be_lost;

impl Client {
    /// Removes what is left of something that nobody uses.
    pub(crate) async fn forget(&self, kind: Kind, name: &str) -> Result<(), Error> {
        let forget = v1::Forget { kind: kind.into(), name: name.to_owned() };
        self.ask(None, None, Op::Forget(forget)).await.map(drop)
    }
}
