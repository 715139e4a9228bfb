//! The identity headers of the front proxy: read only when the peer is the front proxy, always removed. Pure.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;

use super::identity::{Token, User};
use super::trust::HeaderNames;

/// The prefix of all default identity headers.
const REMOTE_PREFIX: &str = "x-remote-";

/// The longest token that is reviewed, in bytes: a service-account token has about 1 KiB, an OIDC token rarely 4 KiB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// The user that the proxy names; `None` when it names nobody or a value is not UTF-8, which two parties could read
/// differently.
pub(crate) fn remote_user(headers: &HeaderMap, names: &HeaderNames) -> Option<User> {
    let name = first(headers, &names.user)?;
    let mut user = User::named(name);
    user.uid = first(headers, &names.uid);
    for header in &names.group {
        for value in headers.get_all(header.as_str()) {
            user.groups.push(text(value)?);
        }
    }
    for (header, value) in headers {
        let prefixes = names.extra_prefix.iter().filter(|prefix| !prefix.is_empty());
        if let Some(key) =
            prefixes.into_iter().find_map(|prefix| header.as_str().strip_prefix(prefix.as_str()))
        {
            let key = percent_decode_str(key).decode_utf8().ok()?.to_lowercase();
            user.extra.entry(key).or_default().push(text(value)?);
        }
    }
    Some(user)
}

/// The first value that is not empty, in the order of `names`.
fn first(headers: &HeaderMap, names: &[String]) -> Option<String> {
    let values = names.iter().flat_map(|name| headers.get_all(name.as_str()));
    values.filter_map(text).find(|value| !value.is_empty())
}

fn text(value: &http::HeaderValue) -> Option<String> {
    String::from_utf8(value.as_bytes().to_vec()).ok()
}

/// The bearer token, if there is a valid one.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<Token> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    let is_valid =
        scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN_BYTES;
    is_valid.then(|| Token::new(token))
}

/// Removes every credential and identity header, so that no handler can mistake one for verified.
pub(crate) fn strip(headers: &mut HeaderMap, names: Option<&HeaderNames>) {
    headers.remove(AUTHORIZATION);
    let is_configured = |header: &str| {
        names.is_some_and(|names| {
            let exact =
                [&names.user, &names.uid, &names.group].into_iter().flatten().any(|name| name == header);
            exact || names.extra_prefix.iter().any(|prefix| !prefix.is_empty() && header.starts_with(prefix))
        })
    };
    let removed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(REMOTE_PREFIX) || is_configured(name.as_str()))
        .cloned()
        .collect();
    for name in removed {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn names() -> HeaderNames {
        HeaderNames {
            user: vec!["x-remote-user".into(), "x-other-user".into()],
            uid: Vec::new(),
            group: vec!["x-remote-group".into()],
            extra_prefix: vec!["x-remote-extra-".into()],
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn appended(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (key, value) in pairs {
            map.append(*key, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn the_proxys_headers_become_the_user_with_every_group_and_extra() {
        let user = remote_user(
            &appended(&[
                ("x-remote-user", ""),
                ("x-other-user", "alice"),
                ("x-remote-group", "a"),
                ("x-remote-group", "b"),
                ("x-remote-uid", "not configured"),
                ("x-remote-extra-authentication.kubernetes.io%2fcredential-id", "JTI=1"),
            ]),
            &names(),
        )
        .unwrap();
        assert_eq!((user.name.as_str(), user.uid), ("alice", None));
        assert_eq!(user.groups, ["a", "b"]);
        assert_eq!(user.extra["authentication.kubernetes.io/credential-id"], ["JTI=1"]);
    }

    #[test]
    fn headers_without_a_name_give_no_user() {
        assert_eq!(remote_user(&headers(&[("x-remote-group", "system:masters")]), &names()), None);
    }

    #[test]
    fn a_group_that_is_not_utf8_invalidates_the_whole_identity() {
        let mut map = headers(&[("x-remote-user", "alice")]);
        map.insert("x-remote-group", HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(remote_user(&map, &names()), None);
    }

    #[test]
    fn strip_removes_every_credential() {
        let mut map = headers(&[
            ("authorization", "Bearer x"),
            ("x-remote-user", "root"),
            ("x-remote-extra-a", "b"),
            ("x-other-user", "root"),
            ("accept", "*/*"),
        ]);
        strip(&mut map, Some(&names()));
        assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }

    #[test]
    fn bearer_reads_only_bearer_tokens() {
        let token = |value| bearer(&headers(&[("authorization", value)]));
        assert_eq!(token("bearer  t "), Some(Token::new("t")));
        assert_eq!(token("Basic dTpw"), None);
        assert_eq!(token("Bearer "), None);
        assert_eq!(format!("{:?}", Token::new("secret")), "Token(…)");
    }
}
