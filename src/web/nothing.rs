//! Hints for a path at which a listener has nothing: a slash too many, a missing `/v1`, or a path of the other listener.

/// Paths of the admin listener, and its setting.
pub const ADMIN: Elsewhere = Elsewhere {
    paths: &["/livez", "/readyz", "/metrics", "/admin"],
    listener: "the admin listener: `server.admin_listen`, 127.0.0.1:9464 unless it is configured",
};

/// Paths of the API.
pub const API: Elsewhere =
    Elsewhere { paths: &["/v1"], listener: "the API: `server.listen`, 127.0.0.1:8080 unless it is configured" };

/// Paths of another listener.
pub struct Elsewhere {
    paths: &'static [&'static str],
    listener: &'static str,
}

/// Returns a hint, which ends with a space, or nothing. `is_path` tells the listener's own paths, which begin with `prefix`.
pub fn hint(path: &str, prefix: &str, elsewhere: &Elsewhere, is_path: impl Fn(&str) -> bool) -> String {
    let asked = path;
    let path = path.trim_end_matches('/');
    let is_elsewhere = |at: &&str| path.strip_prefix(*at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if elsewhere.paths.iter().any(is_elsewhere) {
        return format!("it is a path of {}. ", elsewhere.listener);
    }
    let single = path.replace("//", "/");
    let meant = [single.clone(), format!("{prefix}{single}")].into_iter().find(|path| path != asked && is_path(path));
    meant.map(|meant| format!("did you mean {meant}? ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_nearly_right_gets_a_hint() {
        let hint = |path: &str| hint(path, "/v1", &ADMIN, |path| path == "/v1/claims");
        for near in ["/v1/claims/", "/v1//claims", "//v1/claims", "/claims", "/claims/"] {
            assert_eq!(hint(near), "did you mean /v1/claims? ", "{near}");
        }
        for other in ["/livez", "/readyz/", "/admin/v1/engines", "/metrics"] {
            assert!(hint(other).starts_with("it is a path of the admin listener: `server.admin_listen`"), "{other}");
        }
        for unknown in ["/", "", "/v2/claims", "/livezz", "/v1/claims/x/y/z"] {
            assert_eq!(hint(unknown), "", "{unknown}");
        }
    }
}
