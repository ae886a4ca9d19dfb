//! Sessions of signed-in operators, in memory only. The store has the digest of a session's ID, never the ID and never a token.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::attempt::Entropy;
use oncegate_core::clock::Clock;
use oncegate_core::hex;
use oncegate_gateway::tenants::secret::SecretDigest;

use crate::auth::{Accepted, Token, Tokens};

/// Largest number of sessions, of all tokens and of one. Beyond it the longest idle session ends.
const SESSIONS_MAX: usize = 64;
const SESSIONS_OF_TOKEN_MAX: usize = 8;

/// Longest time without a click.
const IDLE_MAX: Duration = Duration::from_mins(30);

/// Longest time of a session.
const AGE_MAX: Duration = Duration::from_hours(12);

/// The sessions of this process.
pub(super) struct Sessions {
    tokens: Arc<Tokens>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    open: Mutex<Vec<Session>>,
}

/// A session.
struct Session {
    digest: SecretDigest,
    accepted: Accepted,
    begun: Duration,
    /// The last click.
    used: Duration,
    draft: Option<Draft>,
}

/// Text that was typed into a form before its session had ended.
pub(super) struct Draft {
    /// The path of the page that has the form.
    pub(super) path: String,
    pub(super) fields: Vec<(String, String)>,
}

/// The ID of a session, which only its cookie has.
#[derive(Clone)]
pub(super) struct SessionId(String);

impl SessionId {
    /// Returns the ID in a cookie.
    pub(super) fn of_cookie(text: &str) -> Option<Self> {
        let is_id = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_id.then(|| Self(text.to_owned()))
    }

    /// Returns the value of the cookie.
    pub(super) fn cookie(&self) -> &str {
        &self.0
    }

    /// Returns the token that each form of this session carries. It does not reveal the ID.
    pub(super) fn form_token(&self) -> String {
        hex::encode(SecretDigest::of(&format!("form {}", self.0)).bytes())
    }

    /// Reports whether a form carries the token of this session.
    pub(super) fn has_form_token(&self, sent: &str) -> bool {
        SecretDigest::of(&self.form_token()).matches(&SecretDigest::of(sent))
    }

    fn digest(&self) -> SecretDigest {
        SecretDigest::of(&self.0)
    }
}

impl Sessions {
    /// Returns the store without a session.
    pub(super) fn new(tokens: Arc<Tokens>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { tokens, clock, entropy, open: Mutex::default() }
    }

    /// Reports whether operators can sign in.
    pub(super) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Begins a session for this token, with a new ID. Returns nothing if the token is not accepted.
    pub(super) fn sign_in(&self, token: &str) -> Option<(SessionId, Token)> {
        let accepted = self.tokens.find(token)?;
        let bytes: Vec<u8> = (0..4).flat_map(|_| self.entropy.bits().to_le_bytes()).collect();
        let id = SessionId(hex::encode(&bytes));
        let now = self.clock.monotonic();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|session| self.lives(session, now));
        make_room(&mut open, |session| session.accepted.number == accepted.number, SESSIONS_OF_TOKEN_MAX);
        make_room(&mut open, |_| true, SESSIONS_MAX);
        let token = accepted.token.clone();
        open.push(Session { digest: id.digest(), accepted, begun: now, used: now, draft: None });
        Some((id, token))
    }

    /// Returns the token of a session, and counts this as a click.
    pub(super) fn find(&self, id: &SessionId) -> Option<Token> {
        self.look_up(id, true)
    }

    /// Returns the token of a session, for requests of a page without a click.
    pub(super) fn peek(&self, id: &SessionId) -> Option<Token> {
        self.look_up(id, false)
    }

    fn look_up(&self, id: &SessionId, is_click: bool) -> Option<Token> {
        let (digest, now) = (id.digest(), self.clock.monotonic());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|session| self.lives(session, now));
        let session = open.iter_mut().find(|session| session.digest.matches(&digest))?;
        if is_click {
            session.used = now;
        }
        Some(session.accepted.token.clone())
    }

    /// Keeps a draft until its page is opened.
    pub(super) fn keep(&self, id: &SessionId, draft: Draft) {
        let digest = id.digest();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = open.iter_mut().find(|session| session.digest.matches(&digest)) {
            session.draft = Some(draft);
        }
    }

    /// Removes the draft for this page, and returns its fields.
    pub(super) fn take_draft(&self, id: &SessionId, path: &str) -> Vec<(String, String)> {
        let digest = id.digest();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let session = open.iter_mut().find(|session| session.digest.matches(&digest));
        let draft = session.and_then(|session| session.draft.take_if(|draft| draft.path == path));
        draft.map(|draft| draft.fields).unwrap_or_default()
    }

    /// Ends a session.
    pub(super) fn end(&self, id: &SessionId) {
        let digest = id.digest();
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|session| !session.digest.matches(&digest));
    }

    fn lives(&self, session: &Session, now: Duration) -> bool {
        now.saturating_sub(session.used) < IDLE_MAX
            && now.saturating_sub(session.begun) < AGE_MAX
            && self.tokens.is_accepted(session.accepted.number)
    }
}

/// Ends the sessions that were idle for the longest time, until one more of this kind has room.
fn make_room(open: &mut Vec<Session>, is_kind: impl Fn(&Session) -> bool, most: usize) {
    while open.iter().filter(|session| is_kind(session)).count() >= most {
        let idle =
            open.iter().enumerate().filter(|(_, session)| is_kind(session)).min_by_key(|(_, session)| session.used);
        let Some(index) = idle.map(|(index, _)| index) else { return };
        open.remove(index);
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::attempt::SystemEntropy;
    use oncegate_core::clock::{ManualClock, Timestamp};

    use super::*;
    use crate::role::Role;

    struct Lab {
        tokens: Arc<Tokens>,
        clock: Arc<ManualClock>,
        sessions: Sessions,
    }

    fn text_of(name: &str) -> String {
        format!("token_of_{name}_0123456789abcdef")
    }

    fn token(name: &str, role: Role) -> Token {
        Token { name: name.into(), digest: SecretDigest::of(&text_of(name)), role }
    }

    fn lab(names: &[&str]) -> Lab {
        let tokens = Arc::new(Tokens::default());
        tokens.replace(names.iter().map(|name| token(name, Role::Act)).collect());
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(0)));
        let sessions = Sessions::new(tokens.clone(), clock.clone(), Arc::new(SystemEntropy));
        Lab { tokens, clock, sessions }
    }

    impl Lab {
        fn sign_in(&self, name: &str) -> SessionId {
            self.sessions.sign_in(&text_of(name)).expect("the token is accepted").0
        }

        fn lives(&self, id: &SessionId) -> bool {
            self.sessions.find(id).is_some()
        }
    }

    #[test]
    fn only_the_text_of_an_accepted_token_begins_a_session() {
        let lab = lab(&["alice"]);
        assert!(lab.sessions.sign_in("").is_none() && lab.sessions.sign_in(&text_of("bob")).is_none());
        let (first, second) = (lab.sign_in("alice"), lab.sign_in("alice"));
        assert!(lab.lives(&first) && lab.lives(&second) && first.cookie() != second.cookie());
        let other = SessionId::of_cookie(&"0".repeat(64)).unwrap();
        assert!(!lab.lives(&other), "an unknown ID never becomes a session");
        assert!(first.has_form_token(&first.form_token()) && !first.has_form_token(&second.form_token()));
        assert!(!first.form_token().contains(first.cookie()));
        lab.sessions.end(&first);
        assert!(!lab.lives(&first) && lab.lives(&second));
    }

    #[test]
    fn a_session_ends_after_its_time() {
        let lab = lab(&["alice"]);
        let id = lab.sign_in("alice");
        for _ in 0..24 {
            lab.clock.advance(IDLE_MAX.checked_sub(Duration::from_millis(1)).unwrap());
            let is_young = lab.clock.monotonic() < AGE_MAX;
            assert_eq!(lab.lives(&id), is_young);
        }
        lab.clock.advance(IDLE_MAX);
        assert!(!lab.lives(&id), "12 hours");
        let id = lab.sign_in("alice");
        lab.clock.advance(IDLE_MAX);
        assert!(!lab.lives(&id), "30 minutes without a click");
        let id = lab.sign_in("alice");
        lab.clock.advance(IDLE_MAX / 2);
        assert!(lab.sessions.peek(&id).is_some());
        lab.clock.advance(IDLE_MAX / 2);
        assert!(lab.sessions.peek(&id).is_none(), "a look of the page's script is no click");
    }

    #[test]
    fn a_session_ends_with_its_token_or_role() {
        let lab = lab(&["alice", "bob"]);
        let (alice, bob) = (lab.sign_in("alice"), lab.sign_in("bob"));
        lab.tokens.replace(vec![token("alice", Role::Act), token("bob", Role::View)]);
        assert!(lab.lives(&alice), "its token stays");
        assert!(!lab.lives(&bob), "its role has changed");
        lab.tokens.replace(vec![]);
        lab.tokens.replace(vec![token("alice", Role::Act)]);
        assert!(!lab.lives(&alice), "a token that returns does not bring its sessions back");
    }

    #[test]
    fn the_longest_idle_session_gives_way() {
        let names: Vec<String> = (0..9).map(|number| format!("operator_{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lab = lab(&names);
        let mut sessions = Vec::new();
        for name in &names[..8] {
            for _ in 0..SESSIONS_OF_TOKEN_MAX {
                sessions.push(lab.sign_in(name));
                lab.clock.advance(Duration::from_secs(1));
            }
        }
        assert!(sessions.len() == SESSIONS_MAX && sessions.iter().skip(1).all(|id| lab.lives(id)));
        let newest = lab.sign_in(names[8]);
        assert!(!lab.lives(&sessions[0]), "it was not used for the longest time");
        assert!(lab.lives(&newest) && sessions.iter().skip(1).all(|id| lab.lives(id)));
        lab.clock.advance(Duration::from_secs(1));
        assert!(sessions[10..16].iter().all(|id| lab.lives(id)));
        let ninth = lab.sign_in(names[1]);
        assert!(!lab.lives(&sessions[8]) && lab.lives(&sessions[9]), "the longest idle one of the same token");
        assert!(lab.lives(&ninth));
    }
}
