//! Hints for unknown paths of a listener: a slash too many, a missing `/v1`, or a path of the other listener.

use oncegate_core::nearest::nearest;

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

/// Returns a hint that ends with a space, or nothing. `is_path` tells the listener's own paths, which begin with
/// `prefix`; `templates` are these paths, with parameters in braces.
pub fn hint<'t>(
    path: &str,
    prefix: &str,
    elsewhere: &Elsewhere,
    is_path: impl Fn(&str) -> bool,
    templates: impl Iterator<Item = &'t str> + Clone,
) -> String {
    let asked = path;
    let path = path.trim_end_matches('/');
    let is_elsewhere = |at: &&str| path.strip_prefix(*at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if elsewhere.paths.iter().any(is_elsewhere) {
        return format!("it is a path of {}. ", elsewhere.listener);
    }
    let single = path.replace("//", "/");
    // `:batch` is how others write `/batch`.
    let of_words = single.replace(':', "/");
    let meant =
        [single.clone(), format!("{prefix}{single}"), of_words].into_iter().find(|path| path != asked && is_path(path));
    let template = || similar(&single, templates.clone()).or_else(|| with_end(&single, prefix, templates));
    let meant = meant.or_else(|| template().map(str::to_owned));
    meant.map(|meant| format!("did you mean {meant}? ")).unwrap_or_default()
}

/// Returns the first template that has as many segments as a path, each of them the same or a likely typo of it.
fn similar<'t>(path: &str, mut templates: impl Iterator<Item = &'t str>) -> Option<&'t str> {
    let is_similar = |found: &str, meant: &str| {
        found == meant || meant.starts_with('{') && !found.is_empty() || is_typo(found, meant)
    };
    templates.find(|template| {
        path.split('/').count() == template.split('/').count()
            && path.split('/').zip(template.split('/')).all(|(found, meant)| is_similar(found, meant))
    })
}

/// Returns the first template that ends with the only segment of a path after the prefix: `/v1/claims/batch` for `/v1/batch`.
fn with_end<'t>(path: &str, prefix: &str, mut templates: impl Iterator<Item = &'t str>) -> Option<&'t str> {
    let end = path.strip_prefix(prefix).filter(|end| end.rfind('/') == Some(0) && end.len() > 1)?;
    templates.find(|template| template.ends_with(end))
}

/// Short words are versions (`v2`), or stand for something else.
fn is_typo(found: &str, meant: &str) -> bool {
    const WORD_MIN: usize = 4;
    found.len() >= WORD_MIN && found.len() <= 2 * meant.len() && nearest(found, &[meant]).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_nearly_right_gets_a_hint() {
        let templates = ["/v1/claims", "/v1/claims/{global_id}/outcome", "/v1/outcomes/batch"];
        let hint = |path: &str| {
            hint(
                path,
                "/v1",
                &ADMIN,
                |path| ["/v1/claims", "/v1/claims/batch"].contains(&path),
                templates.iter().copied(),
            )
        };
        for near in ["/v1/claims/", "/v1//claims", "//v1/claims", "/claims", "/claims/", "/v1/claim", "/v1/Claims/"] {
            assert_eq!(hint(near), "did you mean /v1/claims? ", "{near}");
        }
        assert_eq!(hint("/v1/claim/8f/outcomes"), "did you mean /v1/claims/{global_id}/outcome? ");
        assert_eq!(hint("/v1/outcome/batch"), "did you mean /v1/outcomes/batch? ");
        assert_eq!(hint("/v1/claims:batch"), "did you mean /v1/claims/batch? ");
        assert_eq!(hint("/v1/batch"), "did you mean /v1/outcomes/batch? ");
        assert_eq!(hint("/v1/outcome"), "did you mean /v1/claims/{global_id}/outcome? ");
        for other in ["/livez", "/readyz/", "/admin/v1/engines", "/metrics"] {
            assert!(hint(other).starts_with("it is a path of the admin listener: `server.admin_listen`"), "{other}");
        }
        for unknown in ["/", "", "/v2/claims", "/livezz", "/v1/claims/x/y/z", "/v1/orders", "/v1/claims//outcome/x"] {
            assert_eq!(hint(unknown), "", "{unknown}");
        }
    }
}
