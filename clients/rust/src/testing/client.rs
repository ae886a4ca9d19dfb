//! Clients of the gateway in memory.

use super::{MemoryGateway, URL};
use crate::client::{Client, Options};

impl MemoryGateway {
    /// Returns a client of this gateway, with the gateway's clock.
    ///
    /// # Panics
    ///
    /// If an option is wrong.
    pub fn client(&self, options: Options) -> Client {
        let gateway = self.clone();
        let options = options.clock_ahead(move || gateway.state().ahead).memory(self.clone());
        match Client::new([URL], options) {
            Ok(client) => client,
            #[expect(clippy::panic, reason = "as assertions of a test")]
            Err(error) => panic!("{error}"),
        }
    }
}
