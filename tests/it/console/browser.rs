//! A minimal browser for the console: it keeps a cookie, marks its forms as same-origin, and reads the form token of a
//! page.

use oncegate_testkit::client::{Answer, Client};
use oncegate_testkit::gateway::Gateway;

use super::token;

/// Field that a browser sends with a form of the console's own pages.
pub(super) const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");
pub(super) const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A browser at one gateway.
pub(super) struct Browser {
    client: Client,
    /// The cookie of its session: `name=value`.
    pub(super) cookie: String,
}

impl Browser {
    /// Returns a browser without a session.
    pub(super) fn at(gateway: &Gateway) -> Self {
        Self { client: gateway.admin_client(), cookie: String::new() }
    }

    /// Returns a browser whose operator has signed in.
    pub(super) async fn signed_in(gateway: &Gateway, role: &str) -> Self {
        let mut browser = Self::at(gateway);
        let answer = browser.sign_in(&token(role), "/console/").await;
        assert_eq!((answer.status, location(&answer)), (303, "/console/"), "{}", answer.text);
        browser
    }

    /// Sends the form of the sign-in, and keeps the cookie.
    pub(super) async fn sign_in(&mut self, token: &str, to: &str) -> Answer {
        let answer = self.post("/console/sign-in", &[OWN], &format!("token={token}&to={to}")).await;
        if let Some(field) = answer.headers.get("set-cookie") {
            field.to_str().unwrap().split(';').next().unwrap().clone_into(&mut self.cookie);
        }
        answer
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    /// Sends a form with these header fields.
    pub(super) async fn post(&self, path: &str, fields: &[(&str, &str)], form: &str) -> Answer {
        self.send("POST", path, &[fields, &[FORM]].concat(), form).await
    }

    /// Sends any request with the cookie.
    pub(super) async fn send(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> Answer {
        let mut fields = fields.to_vec();
        if !self.cookie.is_empty() {
            fields.push(("cookie", &self.cookie));
        }
        self.client.page(method, path, &fields, body.to_owned()).await
    }

    /// Returns the form token of its session.
    pub(super) async fn form_token(&self) -> String {
        let page = self.get("/console/").await;
        let (_, rest) = page.text.split_once("name=\"form_token\" value=\"").expect("a form");
        rest.split('"').next().unwrap().to_owned()
    }
}

/// Returns where a response leads to.
pub(super) fn location(answer: &Answer) -> &str {
    answer.headers.get("location").map_or("", |value| value.to_str().unwrap())
}
