//! Notifications to systemd, for units of `Type=notify`. Without the variable that names its socket nothing is sent.

pub(super) use sd_notify::NotifyState as State;

/// Sends states to the service manager. A manager that cannot be reached must not stop the gateway.
pub(super) fn notify(states: &[State<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(error = %error, "The service manager cannot be notified");
    }
}

/// States at the begin of a reload. Newer managers want its time, too.
pub(super) fn reloading() -> Vec<State<'static>> {
    let mut states = vec![State::Reloading];
    states.extend(State::monotonic_usec_now());
    states
}
