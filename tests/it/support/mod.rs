//! What black-box tests share: servers of their own, and a proxy that breaks what lies between.

pub mod redis_server;
pub mod tcp_proxy;
