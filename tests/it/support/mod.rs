//! What black-box tests share: servers of their own, and a proxy that breaks what lies between.

pub(crate) mod redis_server;
pub(crate) mod tcp_proxy;
