//! Tokens with right and wrong claims, signed by right and wrong keys.

use std::path::Path;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oncegate_core::clock::SystemClock;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::*;

const ISSUER: &str = "https://id.example";

struct Signer(Ed25519KeyPair);

impl Signer {
    fn new() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn jwk(&self, id: &str) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": text(self.0.public_key().as_ref()) })
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", text(header.to_string().as_bytes()), text(claims.to_string().as_bytes()));
        format!("{signed}.{}", text(self.0.sign(signed.as_bytes()).as_ref()))
    }
}

fn text(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn issuers(keys: &[Value], audience: &[&str]) -> Issuers {
    let folder = tempfile::tempdir().unwrap();
    let options = options(ISSUER, &folder.path().join("keys.json"), keys, audience);
    Issuers::new(&[options], Arc::new(SystemClock::new())).unwrap()
}

/// Returns the options of an issuer whose keys are written to this file.
fn options(issuer: &str, file: &Path, keys: &[Value], audience: &[&str]) -> IssuerOptions {
    std::fs::write(file, json!({ "keys": keys }).to_string()).unwrap();
    IssuerOptions {
        issuer: issuer.to_owned(),
        jwks_url: None,
        jwks_file: Some(file.to_owned()),
        ca_file: std::path::PathBuf::new(),
        audience: audience.iter().map(|name| (*name).to_owned()).collect(),
    }
}

fn owner(issuers: &Issuers, token: &str) -> Result<TokenOwner, NoOwner> {
    let value = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
    issuers.owner(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]))
}

fn now() -> u64 {
    SystemClock::new().wall().as_micros() / 1_000_000
}

fn claims(more: &Value) -> Value {
    let mut claims = json!({ "iss": ISSUER, "sub": "alice", "exp": now() + 300 });
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    claims
}

#[test]
fn a_refreshed_token_is_the_same_caller_and_other_subjects_are_not() {
    let (first, second) = (Signer::new(), Signer::new());
    let issuers = issuers(&[first.jwk("1"), second.jwk("2")], &[]);
    let token =
        |signer: &Signer, id: &str, more: &Value| signer.token(&json!({ "alg": "EdDSA", "kid": id }), &claims(more));
    let alice = owner(&issuers, &token(&first, "1", &json!({}))).unwrap();
    assert_eq!((alice.issuer.as_str(), alice.subject.as_str()), (ISSUER, "alice"));
    assert_eq!(owner(&issuers, &token(&second, "2", &json!({ "exp": now() + 900 }))).as_ref(), Ok(&alice));
    assert_ne!(owner(&issuers, &token(&first, "1", &json!({ "sub": "bob" }))).unwrap(), alice);
}

#[test]
fn a_token_that_is_not_what_it_claims_names_nobody() {
    let (own, other) = (Signer::new(), Signer::new());
    let issuers = issuers(&[own.jwk("1")], &["shop", "orders"]);
    let header = json!({ "alg": "EdDSA", "kid": "1" });
    let good = claims(&json!({ "aud": ["x", "shop"], "nbf": now() }));
    let token = own.token(&header, &good);
    assert!(owner(&issuers, &token).is_ok());
    let [first, _, signature] = token.split('.').collect::<Vec<_>>()[..] else { panic!("{token}") };
    let with = |more: &Value| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        own.token(&header, &claims)
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        own.token(&header, &claims)
    };
    for (case, token) in [
        ("another key", other.token(&header, &good)),
        (
            "other claims under the signature",
            format!("{first}.{}.{signature}", text(claims(&json!({ "sub": "bob" })).to_string().as_bytes())),
        ),
        ("no signature", format!("{}.{}.", text(br#"{"alg":"none"}"#), text(good.to_string().as_bytes()))),
        ("an algorithm with a shared secret", own.token(&json!({ "alg": "HS256", "kid": "1" }), &good)),
        ("an unknown key", own.token(&json!({ "alg": "EdDSA", "kid": "2" }), &good)),
        ("an extension", own.token(&json!({ "alg": "EdDSA", "kid": "1", "crit": ["b64"] }), &good)),
        ("expired", with(&json!({ "exp": now() - LEEWAY - 1 }))),
        ("not yet", with(&json!({ "nbf": now() + LEEWAY + 60 }))),
        ("a date that is a text", with(&json!({ "nbf": "never" }))),
        ("another issuer", with(&json!({ "iss": "https://id.evil" }))),
        ("another audience", with(&json!({ "aud": "bank" }))),
        ("an empty subject", with(&json!({ "sub": "" }))),
        ("no audience", without("aud")),
        ("no subject", without("sub")),
        ("no end", without("exp")),
        ("no token", "abc".to_owned()),
        ("too long", format!("{}.a.b", "x".repeat(TOKEN_BYTES_MAX))),
    ] {
        assert!(matches!(owner(&issuers, &token), Err(NoOwner::Invalid(_))), "{case}");
    }
    assert_eq!(issuers.owner(&HeaderMap::new()), Err(NoOwner::Missing));
}

/// Keys with the same ID, and audiences that differ.
#[test]
fn of_several_issuers_each_speaks_for_itself() {
    const OTHER: &str = "https://other.example";
    let (folder, one, two) = (tempfile::tempdir().unwrap(), Signer::new(), Signer::new());
    let file = |name: &str| folder.path().join(name);
    let options =
        [options(ISSUER, &file("one"), &[one.jwk("1")], &["shop"]), options(OTHER, &file("two"), &[two.jwk("1")], &[])];
    let issuers = Issuers::new(&options, Arc::new(SystemClock::new())).unwrap();
    let header = json!({ "alg": "EdDSA", "kid": "1" });
    for (signer, issuer, audience, is_valid) in [
        (&one, ISSUER, "shop", true),
        (&two, OTHER, "bank", true),
        (&one, ISSUER, "bank", false),
        (&one, OTHER, "shop", false),
        (&two, ISSUER, "shop", false),
    ] {
        let token = signer.token(&header, &claims(&json!({ "iss": issuer, "aud": audience })));
        let found = owner(&issuers, &token);
        assert_eq!(found.is_ok_and(|owner| owner.issuer == issuer), is_valid, "{issuer}, {audience}");
    }
    let subject = |signer: &Signer, issuer| {
        owner(&issuers, &signer.token(&header, &claims(&json!({ "iss": issuer, "aud": "shop" }))))
    };
    assert_ne!(subject(&one, ISSUER), subject(&two, OTHER), "the same subject of another issuer is another caller");
}

#[test]
fn keys_of_other_kinds_are_used_for_their_own_algorithm_only() {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref();
    let jwk = json!({ "kty": "EC", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..]), "use": "sig" });
    let issuers = issuers(&[jwk], &[]);
    for (algorithm, is_valid) in [("ES256", true), ("EdDSA", false), ("RS256", false)] {
        let header = json!({ "alg": algorithm }).to_string();
        let signed = format!("{}.{}", text(header.as_bytes()), text(claims(&json!({})).to_string().as_bytes()));
        let signature = pair.sign(&random, signed.as_bytes()).unwrap();
        assert_eq!(owner(&issuers, &format!("{signed}.{}", text(signature.as_ref()))).is_ok(), is_valid, "{algorithm}");
    }
}

/// Example of RFC 7515, A.2: a key of RSA, and the data that it has signed.
#[test]
fn the_signature_of_the_standard_is_verified() {
    let keys = json!({ "keys": [{ "kty": "RSA", "e": "AQAB", "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ" }] });
    let keys = keys::KeySet::parse(keys.to_string().as_bytes()).unwrap();
    let signed = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let signature = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    assert_eq!(keys.verify(None, "RS256", signed.as_bytes(), &signature), Ok(()));
    for wrong in ["RS512", "PS256", "HS256", "none"] {
        assert!(keys.verify(None, wrong, signed.as_bytes(), &signature).is_err(), "{wrong}");
    }
}

#[test]
fn sets_without_a_key_and_urls_that_anyone_can_answer_are_refused() {
    for wrong in [
        "",
        "{}",
        r#"{"keys": []}"#,
        r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0"}, {"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB"}]}"#,
    ] {
        assert!(keys::KeySet::parse(wrong.as_bytes()).is_err(), "{wrong}");
    }
    let check = |url: &str| {
        let text = format!("issuer = \"i\"\njwks_url = {url:?}\n");
        toml::from_str::<IssuerOptions>(&text).unwrap().check()
    };
    assert!(check("http://127.0.0.1:8000/keys").is_ok());
    for wrong in ["http://id.example/keys", "id.example", "", "ftp://id.example/keys", "https://u@id.example/keys"] {
        assert!(check(wrong).is_err(), "{wrong}");
    }
    assert!(toml::from_str::<IssuerOptions>("issuer = \"i\"").unwrap().check().is_err());
}
