//! Claimed identities: identity headers, tokens, the ConfigMap of the trust, and certificates.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use rustls::pki_types::CertificateDer;

use super::{damaged, fuzz, text};
use crate::serve::auth::trust::{HeaderNames, Trust, bearer, remote_user, strip};
use crate::serve::auth::{Subject, User};
use crate::serve::tls::pem;

fn names() -> HeaderNames {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    HeaderNames {
        user: texts(&["x-remote-user", "x-other-user"]),
        uid: texts(&["x-remote-uid"]),
        group: texts(&["x-remote-group", "x-team"]),
        extra_prefix: texts(&["x-remote-extra-", "x-more-", ""]),
    }
}

/// Names with a meaning, and names that nearly have one.
const HEADERS: [&str; 14] = [
    "authorization",
    "x-remote-user",
    "x-remote-uid",
    "x-remote-group",
    "x-remote-extra-a%2fb",
    "x-remote-extra-",
    "x-remote-",
    "x-remotely",
    "x-other-user",
    "x-team",
    "x-more-%ff",
    "x-mor",
    "accept",
    "impersonate-user",
];

fn header() -> impl Strategy<Value = HeaderName> {
    let any = damaged(&HEADERS).prop_filter_map("no name", |bytes| HeaderName::from_bytes(&bytes).ok());
    prop_oneof![2 => select(&HEADERS[..]).prop_map(HeaderName::from_static), 1 => any]
}

fn value() -> impl Strategy<Value = HeaderValue> {
    let bytes =
        prop_oneof![damaged(&["system:masters", "Bearer abc.def", "alice", ""]), vec(any::<u8>(), 0..20)];
    bytes.prop_filter_map("no value", |bytes| HeaderValue::from_bytes(&bytes).ok())
}

fn map(pairs: &[(HeaderName, HeaderValue)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(name.clone(), value.clone());
    }
    headers
}

/// An independent definition of identity headers.
fn is_identity(name: &str, configured: bool) -> bool {
    let exact = ["x-remote-user", "x-other-user", "x-remote-uid", "x-remote-group", "x-team"];
    let is_named = exact.contains(&name) || name.starts_with("x-more-");
    name == "authorization" || name.starts_with("x-remote-") || (configured && is_named)
}

#[test]
fn no_identity_header_is_left_after_strip() {
    fuzz("strip", (vec((header(), value()), 0..12), any::<bool>()), |(pairs, configured)| {
        let mut headers = map(&pairs);
        let names = names();
        strip(&mut headers, configured.then_some(&names));
        prop_assert!(!headers.keys().any(|name| is_identity(name.as_str(), configured)), "{:?}", headers);
        let others = pairs.iter().filter(|(name, _)| !is_identity(name.as_str(), configured)).count();
        prop_assert_eq!(headers.len(), others, "the rest stays");
        prop_assert!(bearer(&headers).is_none());
        prop_assert!(!configured || remote_user(&headers, &names).is_none());
        Ok(())
    });
}

#[test]
fn a_user_has_only_what_the_headers_contain() {
    fuzz("remote user", vec((header(), value()), 0..12), |pairs| {
        let headers = map(&pairs);
        let Some(user) = remote_user(&headers, &names()) else { return Ok(()) };
        let is_in_headers = |names: &[&str], text: &str| {
            pairs
                .iter()
                .any(|(name, value)| names.contains(&name.as_str()) && value.as_bytes() == text.as_bytes())
        };
        prop_assert!(!user.name.is_empty() && is_in_headers(&["x-remote-user", "x-other-user"], &user.name));
        prop_assert!(user.groups.iter().all(|group| is_in_headers(&["x-remote-group", "x-team"], group)));
        prop_assert!(user.uid.iter().all(|uid| is_in_headers(&["x-remote-uid"], uid)));
        prop_assert!(user.extra.keys().all(|key| *key == key.to_lowercase()));
        Ok(())
    });
}

#[test]
fn every_attribute_that_the_proxy_sends_arrives() {
    let plain = || text("[ -~é☃]{0,12}").prop_map(|text| text.trim().to_owned());
    let name = plain().prop_filter("a name", |name| !name.is_empty());
    let extra = btree_map(text("[!-@\\[-~é☃]{1,12}"), vec(plain(), 1..3), 0..3);
    let uid = option::of(plain().prop_filter("an id", |id| !id.is_empty()));
    fuzz("proxied user", (name, uid, vec(plain(), 0..4), extra), |(name, uid, groups, extra)| {
        let mut headers = HeaderMap::new();
        let mut append = |name: &str, text: &str| {
            let name = HeaderName::try_from(name).unwrap();
            headers.append(name, HeaderValue::from_bytes(text.as_bytes()).unwrap());
        };
        append("X-Remote-User", &name);
        uid.iter().for_each(|uid| append("X-Remote-Uid", uid));
        groups.iter().for_each(|group| append("X-Remote-Group", group));
        for (key, values) in &extra {
            let key = format!("X-Remote-Extra-{}", utf8_percent_encode(key, NON_ALPHANUMERIC));
            values.iter().for_each(|value| append(&key, value));
        }
        let sent = User { name, uid, groups, extra };
        prop_assert_eq!(remote_user(&headers, &names()), Some(sent));
        Ok(())
    });
}

#[test]
fn a_token_is_what_follows_the_scheme() {
    let header = prop_oneof![
        damaged(&["Bearer abc.def-ghi", "bearer  x ", "Basic dTpw", "Bearer"]),
        vec(any::<u8>(), 0..20)
    ];
    fuzz("bearer", header, |header| {
        let Ok(value) = HeaderValue::from_bytes(&header) else { return Ok(()) };
        let Some(token) = bearer(&HeaderMap::from_iter([(AUTHORIZATION, value)])) else { return Ok(()) };
        let text = String::from_utf8(header).unwrap();
        prop_assert!(text.to_ascii_lowercase().starts_with("bearer "), "{:?}", text);
        prop_assert!(!token.secret().is_empty() && text.trim_end().ends_with(token.secret()), "{:?}", text);
        let printed = format!("{token:?}");
        prop_assert_eq!(printed, "Token(…)");
        Ok(())
    });
}

/// A CA and its key, in PEM; the CA in DER.
static CA: LazyLock<(String, String, Vec<u8>)> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["wva.example".into()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "front-proxy");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem(), certificate.der().to_vec())
});

#[test]
fn no_trust_config_map_harms() {
    let (ca, ..) = &*CA;
    let bundles = [ca.clone(), format!("{ca}{ca}"), format!("# a comment\n{ca}"), String::new()];
    let lists = ["[\"front-proxy-client\"]", "[]", "", "[\"X-Remote-User\",\"X-Other\"]", "[\"é\"]", "{}"];
    let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let bundle = || option::of(damaged(&bundles).prop_map(lossy));
    let list = || option::of(damaged(&lists).prop_map(lossy));
    fuzz(
        "trust",
        (bundle(), bundle(), list(), list(), list(), list()),
        |(proxy, users, allowed, user, group, extra)| {
            let entries = [
                ("requestheader-client-ca-file", proxy.as_ref()),
                ("client-ca-file", users.as_ref()),
                ("requestheader-allowed-names", allowed.as_ref()),
                ("requestheader-username-headers", user.as_ref()),
                ("requestheader-group-headers", group.as_ref()),
                ("requestheader-extra-headers-prefix", extra.as_ref()),
            ];
            let entries = entries.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.clone())));
            let data: BTreeMap<String, String> = entries.collect();
            match Trust::parse(&data) {
                Ok(trust) => {
                    let blank =
                        |text: &Option<String>| text.as_ref().is_none_or(|text| text.trim().is_empty());
                    prop_assert_eq!(trust.front_proxy.is_none(), blank(&proxy));
                    prop_assert_eq!(trust.users.is_none(), blank(&users));
                }
                Err(error) => prop_assert!(error.to_string().contains("the last valid version stays in use")),
            }
            Ok(())
        },
    );
}

#[test]
fn no_certificate_harms() {
    let (certificate, key, der) = &*CA;
    let input = (
        damaged(std::slice::from_ref(certificate)),
        damaged(std::slice::from_ref(key)),
        damaged(std::slice::from_ref(der)),
    );
    fuzz("certificates", input, |(certificate, key, der)| {
        let _ = (pem::certificates(&certificate), pem::roots(&certificate), pem::private_key(&key));
        let _ = (pem::certified_key(&certificate, &key), pem::ClientCas::from_pem(&certificate));
        let _ = Subject::parse(&CertificateDer::from(der));
        Ok(())
    });
}
