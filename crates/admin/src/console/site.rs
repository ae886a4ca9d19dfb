//! The names that the console answers to, its cookie, and the proof that a form comes from its own pages.

use axum::http::{HeaderMap, HeaderValue, header};
use oncegate_web::head;

use super::options::ConsoleOptions;
use super::session::SessionId;

/// Names and cookie of the console.
pub(super) struct Sites {
    /// The configured origin, and its host with port.
    configured: Option<(String, String)>,
    /// The admin listener has TLS.
    has_tls: bool,
    /// Names the cookie of this gateway. Cookies do not know ports, so gateways of one host must not share a name.
    mark: String,
}

/// The origin under which a browser has opened a page.
#[derive(Clone)]
pub(super) struct Site {
    origin: String,
    cookie: String,
    is_secure: bool,
}

impl Sites {
    /// Returns the names of a console.
    pub(super) fn new(options: &ConsoleOptions, has_tls: bool, mark: String) -> Self {
        let configured = options.authority().map(|authority| (options.origin.clone(), authority.to_owned()));
        Self { configured, has_tls, mark }
    }

    /// Returns 8 digits that distinguish this gateway from others.
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// Returns the site of this host, if the console answers to it.
    pub(super) fn of_host(&self, host: &str) -> Option<Site> {
        let host = host.to_ascii_lowercase();
        let plain = host.strip_suffix(":443").unwrap_or(&host);
        if let Some((origin, _)) = self.configured.as_ref().filter(|(_, authority)| authority == plain) {
            return Some(self.site(origin.clone(), true));
        }
        let scheme = if self.has_tls { "https" } else { "http" };
        head::is_loopback_host(&host).then(|| self.site(format!("{scheme}://{host}"), self.has_tls))
    }

    fn site(&self, origin: String, is_secure: bool) -> Site {
        let prefix = if is_secure { "__Host-" } else { "" };
        Site { origin, cookie: format!("{prefix}oncegate-{}", self.mark), is_secure }
    }
}

impl Site {
    /// Returns the session that the cookies of a request name.
    pub(super) fn session(&self, headers: &HeaderMap) -> Option<SessionId> {
        cookies(headers).find_map(|(name, value)| SessionId::of_cookie(value).filter(|_| name == self.cookie))
    }

    /// Reports whether a request has the cookie of any gateway.
    pub(super) fn has_any_session(headers: &HeaderMap) -> bool {
        cookies(headers).any(|(name, _)| name.trim_start_matches("__Host-").starts_with("oncegate-"))
    }

    /// Returns the field that makes the browser keep a session.
    pub(super) fn keep(&self, id: &SessionId) -> Option<HeaderValue> {
        self.field(id.cookie(), "")
    }

    /// Returns the field that makes the browser forget its session.
    pub(super) fn forget(&self) -> Option<HeaderValue> {
        self.field("", "; Max-Age=0")
    }

    fn field(&self, value: &str, more: &str) -> Option<HeaderValue> {
        let (name, secure) = (&self.cookie, if self.is_secure { "; Secure" } else { "" });
        HeaderValue::from_str(&format!("{name}={value}; Path=/{secure}; HttpOnly; SameSite=Strict{more}")).ok()
    }

    /// Reports whether a request was sent by a page of this site. A page on another port of the host could send the cookie too.
    pub(super) fn has_sent(&self, headers: &HeaderMap) -> bool {
        match only(headers, "sec-fetch-site") {
            Field::Value(value) => value == "same-origin",
            Field::Absent => {
                matches!(only(headers, header::ORIGIN.as_str()), Field::Value(origin) if origin == self.origin)
            }
            Field::Several => false,
        }
    }

    /// Reports whether a link on another site has led here. Its request comes without the cookie.
    pub(super) fn is_linked(headers: &HeaderMap) -> bool {
        matches!(only(headers, "sec-fetch-site"), Field::Value("cross-site" | "same-site"))
    }
}

/// A field that a request may have once.
enum Field<'a> {
    Absent,
    Value(&'a str),
    Several,
}

fn only<'a>(headers: &'a HeaderMap, name: &str) -> Field<'a> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Field::Absent,
        (Some(value), None) => value.to_str().map_or(Field::Several, Field::Value),
        _ => Field::Several,
    }
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let fields = headers.get_all(header::COOKIE).iter().filter_map(|field| field.to_str().ok());
    fields.flat_map(|field| field.split(';')).filter_map(|pair| pair.trim().split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(origin: &str, has_tls: bool) -> Sites {
        let options = ConsoleOptions {
            enabled: true,
            origin: origin.to_owned(),
            links: super::super::options::ConsoleLinks::default(),
        };
        Sites::new(&options, has_tls, "0a1b2c3d".to_owned())
    }

    fn fields(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect::<Vec<_>>()
            .into_iter()
            .fold(HeaderMap::new(), |mut all, (name, value): (header::HeaderName, _)| {
                all.append(name, value);
                all
            })
    }

    #[test]
    fn it_answers_to_loopback_and_its_one_name() {
        let named = sites("https://og-a.ops.example", false);
        for host in ["og-a.ops.example", "OG-A.ops.example:443", "127.0.0.1:9464", "localhost", "[::1]:1"] {
            assert!(named.of_host(host).is_some(), "{host}");
        }
        for host in ["og-b.ops.example", "og-a.ops.example:8443", "x.og-a.ops.example", "10.0.0.1", "localhost.example"]
        {
            assert!(named.of_host(host).is_none(), "{host}");
        }
        assert!(sites("", false).of_host("og-a.ops.example").is_none());
    }

    #[test]
    fn cookies_are_strict_and_secure_where_they_can_be() {
        let id = SessionId::of_cookie(&"ab".repeat(32)).unwrap();
        let kept = |sites: Sites, host: &str| {
            let site = sites.of_host(host).unwrap();
            assert!(site.session(&fields(&[])).is_none());
            site.keep(&id).unwrap().to_str().unwrap().replace(&"ab".repeat(32), "ID")
        };
        let secure = "__Host-oncegate-0a1b2c3d=ID; Path=/; Secure; HttpOnly; SameSite=Strict";
        let plain = "oncegate-0a1b2c3d=ID; Path=/; HttpOnly; SameSite=Strict";
        assert_eq!(kept(sites("https://og.example", false), "og.example"), secure);
        assert_eq!(kept(sites("", true), "localhost:1"), secure);
        assert_eq!(kept(sites("https://og.example", false), "127.0.0.1:1"), plain);
    }

    #[test]
    fn only_its_own_pages_send_forms() {
        let site = sites("https://og.example", false).of_host("og.example").unwrap();
        let same = ("sec-fetch-site", "same-origin");
        for good in [&[same][..], &[same, ("origin", "null")], &[("origin", "https://og.example")]] {
            assert!(site.has_sent(&fields(good)), "{good:?}");
        }
        for bad in [
            &[][..],
            &[("sec-fetch-site", "same-site"), ("origin", "https://og.example")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "none")],
            &[same, same],
            &[("origin", "null")],
            &[("origin", "https://og.example:8443")],
            &[("origin", "http://og.example")],
            &[("origin", "https://evil.example")],
            &[("origin", "https://og.example"), ("origin", "https://og.example")],
        ] {
            assert!(!site.has_sent(&fields(bad)), "{bad:?}");
        }
        let local = sites("", false).of_host("127.0.0.1:9464").unwrap();
        assert!(local.has_sent(&fields(&[("origin", "http://127.0.0.1:9464")])));
        assert!(!local.has_sent(&fields(&[("origin", "http://127.0.0.1:9465")])), "another port");
    }
}
