//! What the tests talk to and with: gateways, servers, a proxy that breaks and heals, a caller that knows the document.

pub(crate) mod client;
pub(crate) mod gateway;
pub(crate) mod openapi;
