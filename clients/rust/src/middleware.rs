//! The middleware for services of `Idempotency-Key`: a request with a key runs once, and its repeats get the stored response.
//!
//! [`Idempotent`] has the options. `tower::IdempotencyLayer` and `actix_web::Idempotency` are this type for their frameworks. Names,
//! statuses and the stored form are those of the gateway's proxy, so a service can move from one to the other.

mod body;
mod fields;
mod fingerprint;
mod key;
mod multipart;
mod options;
mod protect;
mod receive;
mod recorder;
mod refusal;
mod run;
mod status;
mod stored;

pub use body::{RequestBody, ResponseBody};
pub use fingerprint::FingerprintPart;
pub use options::Idempotent;
pub use status::Meaning;

#[cfg(feature = "tower")]
pub(crate) use self::fields::for_handler;
#[cfg(feature = "actix-web")]
pub(crate) use self::recorder::Harmless;
#[cfg(any(feature = "tower", feature = "actix-web"))]
pub(crate) use self::{
    protect::{Admission, Admitted, Claimed, Seen},
    receive::{drain, receive},
    run::run,
};
