//! Values in separate files: which settings may have one, which layer wins, and the messages about unusable files.

use super::*;

/// Creates a folder with these files, and returns a configuration in which its path replaces `DIR`.
fn given<'a>(files: &[(&str, &str)], text: &str, environment: &[(&'a str, &str)]) -> (tempfile::TempDir, Loaded<'a>) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("writes the file");
    }
    let here = |text: &str| text.replace("DIR", &folder.path().display().to_string());
    let environment = environment.iter().map(|(name, value)| (*name, here(value))).collect();
    let file = here(text);
    (folder, Loaded { file, environment })
}

struct Loaded<'a> {
    file: String,
    environment: Vec<(&'a str, String)>,
}

impl Loaded<'_> {
    fn load(&self) -> Result<Config, Problems> {
        let environment: Vec<_> = self.environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Given { file: &self.file, environment: &environment, ..Given::default() }.load()
    }
}

fn refused(files: &[(&str, &str)], text: &str, environment: &[(&str, &str)]) -> String {
    let (folder, loaded) = given(files, text, environment);
    let problems = loaded.load().expect_err("a mistake").0;
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n").replace(&folder.path().display().to_string(), "DIR")
}

#[test]
fn every_secret_setting_may_be_in_a_file() {
    let digests = format!("# the new one\n{DIGEST}\n\n  {DIGEST}\r\n");
    let (_folder, loaded) = given(
        &[("url", "redis://:hidden@a/0\n"), ("alice", &format!("{DIGEST}\r\n")), ("shop", &digests)],
        "[engines]\nprimary_file = \"DIR/url\"\n[admin.tokens]\nalice_file = \"DIR/alice\"\n\
         [apps.shop]\nsecrets_file = \"DIR/shop\"",
        &[],
    );
    let config = loaded.load().unwrap();
    assert_eq!(config.engines["primary"], "redis://:hidden@a/0");
    assert_eq!(config.admin.tokens["alice"].digest, DIGEST);
    assert_eq!(config.apps.values().next().unwrap().secrets, [DIGEST, DIGEST]);
    assert!(!config.redacted_toml().unwrap().contains("hidden"));
}

#[test]
fn a_file_belongs_to_the_layer_that_names_it() {
    let files = &[("low", "redis://low"), ("high", "redis://high")];
    let low = "[engines]\nprimary_file = \"DIR/low\"";
    let (by_file, by_value) =
        (("ONCEGATE_ENGINES__PRIMARY_FILE", "DIR/high"), ("ONCEGATE_ENGINES__PRIMARY", "redis://value"));
    let (_kept, loaded) = given(files, low, &[by_file]);
    assert_eq!(loaded.load().unwrap().engines["primary"], "redis://high");
    let (_kept, loaded) = given(files, low, &[by_value]);
    assert_eq!(loaded.load().unwrap().engines["primary"], "redis://value");
    let (_kept, loaded) = given(files, "[engines]\nprimary = \"redis://value\"", &[by_file]);
    assert_eq!(loaded.load().unwrap().engines["primary"], "redis://high");
}

#[test]
fn a_problem_with_a_file_names_the_setting() {
    let long = "x".repeat(65 << 10);
    let refused = refused(
        &[
            ("empty", "\n"),
            ("two", "hidden\nhidden\n"),
            ("long", &long),
            ("comment", "# hidden\n"),
            ("value", "hidden"),
        ],
        "[engines]\nprimary_file = \"DIR/none\"\na_file = \"DIR/empty\"\nb_file = \"DIR/two\"\nc_file = \"DIR/long\"\n\
         d_file = 5\ne_file = \"redis://:hidden@host\"\nf_file = \"DIR\"\n[admin.tokens]\nalice_file = \"sha256:hidden\"\n\
         [apps.shop]\nsecrets_file = \"DIR/comment\"",
        &[("ONCEGATE_ADMIN__TOKENS__BOB_FILE", "DIR/none")],
    );
    assert!(!refused.contains("hidden"), "{refused}");
    insta::assert_snapshot!(refused, @r#"
    environment variable ONCEGATE_ADMIN__TOKENS__BOB_FILE: admin.tokens.bob_file: cannot read DIR/none: No such file or directory (os error 2)
    oncegate.toml, line 2: engines.primary_file: cannot read DIR/none: No such file or directory (os error 2)
    oncegate.toml, line 3: engines.a_file: DIR/empty is empty; it must hold the value
    oncegate.toml, line 4: engines.b_file: DIR/two has more than one line; it must hold the value alone
    oncegate.toml, line 5: engines.c_file: DIR/long is longer than 65536 bytes; it must hold the value alone
    oncegate.toml, line 6: engines.d_file: expected a text, the path of a file
    oncegate.toml, line 7: engines.e_file: not a path; a name that ends in `_file` names a file that holds the value
    oncegate.toml, line 8: engines.f_file: cannot read DIR: Is a directory (os error 21)
    oncegate.toml, line 10: admin.tokens.alice_file: not a path; a name that ends in `_file` names a file that holds the value
    oncegate.toml, line 12: apps.shop.secrets_file: DIR/comment is empty; it must hold one value a line
    "#);
}

#[test]
fn the_content_of_a_file_is_checked_and_not_shown() {
    let refused = refused(
        &[("value", "hidden\n"), ("url", "redis://:hidden@host?prefx=a")],
        "[engines]\nprimary_file = \"DIR/url\"\n[admin.tokens]\nalice_file = \"DIR/value\"\n\
         [apps.shop]\nsecrets_file = \"DIR/value\"",
        &[("ONCEGATE_ENGINES__OTHER_FILE", "DIR/url")],
    );
    assert!(!refused.contains("hidden"), "{refused}");
    insta::assert_snapshot!(refused, @r#"
    environment variable ONCEGATE_ENGINES__OTHER_FILE, engines.other_file (DIR/url): engines.other: not the URL of a Redis store: it has no key `prefx`; did you mean `prefix`?
    oncegate.toml, line 2, engines.primary_file (DIR/url): engines.primary: not the URL of a Redis store: it has no key `prefx`; did you mean `prefix`?
    oncegate.toml, line 4, admin.tokens.alice_file (DIR/value): admin.tokens.alice: a secret is configured as "sha256:" and the 64 hex digits of its SHA-256; `oncegate app new NAME` makes one for an app, `oncegate admin-token new NAME` for an operator
    oncegate.toml, line 6, apps.shop.secrets_file (DIR/value): apps.shop.secrets: a secret is configured as "sha256:" and the 64 hex digits of its SHA-256; `oncegate app new NAME` makes one for an app, `oncegate admin-token new NAME` for an operator
    "#);
}

#[test]
fn a_value_and_its_file_in_one_layer_contradict_each_other() {
    let refused = refused(
        &[("value", "memory:")],
        "[engines]\nprimary = \"memory:\"\nprimary_file = \"DIR/value\"",
        &[("ONCEGATE_ENGINES__X", "memory:"), ("ONCEGATE_ENGINES__X_FILE", "DIR/value")],
    );
    insta::assert_snapshot!(refused, @r#"
    environment variable ONCEGATE_ENGINES__X_FILE: engines.x_file: set either this or `x`, not both
    oncegate.toml, line 3: engines.primary_file: set either this or `primary`, not both
    "#);
}

#[test]
fn a_file_variable_with_a_missing_underscore_is_reported() {
    let refused = refused(&[], "", &[("ONCEGATE_ENGINES_PRIMARY_FILE", "DIR/value")]);
    assert!(refused.contains("did you mean ONCEGATE_ENGINES__PRIMARY_FILE?"), "{refused}");
}

#[test]
fn other_settings_have_no_file() {
    let refused =
        refused(&[("value", "debug")], "[log]\nlevel_file = \"DIR/value\"\n[apps.shop]\nlease_file = \"x\"", &[]);
    assert!(refused.contains("log.level_file: unknown key") && refused.contains("apps.shop.lease_file: unknown key"));
}
