//! The texts of the console. One enum has them all, and each language answers every one of them, so that a missing text does not
//! compile.

mod english;

use std::borrow::Cow;

/// A language of the console.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    /// English.
    English,
}

/// The texts in one language.
#[derive(Clone, Copy)]
pub(super) struct Texts(pub(super) Language);

impl Language {
    /// Returns its tag for the `lang` of a page.
    pub(super) fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
        }
    }
}

impl Texts {
    /// Returns a text.
    pub(super) fn of(self, text: Text<'_>) -> Cow<'static, str> {
        match self.0 {
            Language::English => english::text(text),
        }
    }
}

/// A text, with the values that it names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Text<'a> {
    // Every page.
    SkipToContent,
    UpFor(&'a str),
    SignOut,
    Overview,
    Attention,
    ThisGateway,
    AsOf(&'a str),
    SameAs,
    Starting,
    Draining,
    // Errors.
    Problem,
    Code,
    Request,
    NotFound,
    NoSuchPage,
    NothingKnownToHaveChanged,
    NoTokens,
    NoTokensWhy,
    NoTokensMake,
    NoTokensThen,
    FormIsOld,
    NotFromThisSite,
    // Sign-in.
    SignIn,
    Token,
    TokenHint,
    WrongToken,
    SessionEnded(&'a str),
    OneMoment,
    GoOn,
    // Attention.
    NothingNeedsYou,
    ThingsNeedYou(usize),
    Store,
    Chain,
    Journal,
    Check,
    StoreDown { engine: &'a str, since: &'a str },
    ChainFrozen { chain: &'a str, left: &'a str },
    ChainSwitching { chain: &'a str, to: &'a str },
    JournalRefuses,
    JournalWaits { entries: usize, oldest: &'a str },
    Suspects { count: usize, more: bool },
    LookThemUp,
    CheckAdvice,
    AllKinds,
    Overlaps,
    Doubles,
    Noticed,
    App,
    Operation,
    What,
    Why,
    TwoGrants(&'a str),
    SupersededSuccess,
    SupersededUnknown,
    Ours,
    Theirs,
    NoneOpen,
    Older,
    SeenHere,
    // Engines.
    Engines,
    Engine,
    Since,
    State,
    Answers,
    DoesNotAnswer,
}
