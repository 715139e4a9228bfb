//! Trust from the ConfigMap, on the wire and while it changes.

use std::collections::BTreeMap;

use wva::serve::auth::User;

use super::READ;
use super::identity::eventually;
use super::pki::{Authority, Leaf};
use super::test_server::{TestServer, trust};

impl TestServer {
    /// The cluster's own trust with some keys changed.
    fn trusts(&self, changes: &[(&str, &str)]) {
        let mut data = trust(&self.front_proxy.pem(), &self.users.pem());
        data.extend(changes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        self.trust.send_replace(Some(data));
    }

    async fn status(&self, identity: Option<&Leaf>, lines: &[&str]) -> u16 {
        self.send(identity, &format!("GET {READ}"), lines).await.status
    }

    /// The user of the last review.
    fn reviewed(&self) -> User {
        self.reviewer.reviews.lock().last().expect("a review").0.clone()
    }
}

#[tokio::test]
async fn header_names_follow_the_configmap() {
    let server = TestServer::new().await;
    let proxy = Some(&server.proxy);
    assert_eq!(server.status(proxy, &["X-Remote-User: hpa"]).await, 200);
    server.trusts(&[
        ("requestheader-username-headers", r#"["X-Acme-Name","X-Acme-Login"]"#),
        ("requestheader-group-headers", r#"["X-Acme-Group","X-Acme-Role"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Acme-Extra-","X-More-"]"#),
    ]);
    eventually(|| async { server.status(proxy, &["X-Acme-Login: alice"]).await == 200 }).await;
    let lines = [
        "X-Acme-Name: ",
        "X-Acme-Login: alice",
        "X-Acme-Role: r",
        "X-Acme-Group: a",
        "X-Acme-Group: b",
        "X-Acme-Extra-Example.com%2fScopes: one",
        "x-acme-extra-example.com%2Fscopes: two%2f",
        "X-More-Thing: t",
        "X-Remote-Group: system:masters",
        "X-Remote-Extra-Old: x",
    ];
    assert_eq!(server.status(proxy, &lines).await, 200);
    let user = server.reviewed();
    assert_eq!((user.name.as_str(), &user.uid), ("alice", &None));
    assert_eq!(
        user.groups,
        ["a", "b", "r", "system:authenticated"],
        "all of them, in the order of the names"
    );
    let extra = [("example.com/scopes", vec!["one", "two%2f"]), ("thing", vec!["t"])];
    let extra = extra.map(|(key, values)| (key.to_owned(), values.iter().map(|v| (*v).to_owned()).collect()));
    assert_eq!(user.extra, BTreeMap::from(extra), "keys are decoded, values are not");
    assert_eq!(server.status(proxy, &["X-Remote-User: hpa"]).await, 403, "the names before mean nothing now");
}

#[tokio::test]
async fn a_uid_counts_only_where_the_configmap_names_its_header() {
    let server = TestServer::new().await;
    let lines = ["X-Remote-User: hpa", "X-Remote-Uid: 42"];
    assert_eq!(server.status(Some(&server.proxy), &lines).await, 200);
    assert_eq!(server.reviewed().uid, None);
    server.trusts(&[("requestheader-uid-headers", r#"["X-Remote-Uid"]"#)]);
    let has_uid = || async {
        assert_eq!(server.status(Some(&server.proxy), &lines).await, 200);
        server.reviewed().uid.as_deref() == Some("42")
    };
    eventually(has_uid).await;
    assert_eq!(server.status(Some(&server.proxy), &["X-Remote-User: hpa", "X-Remote-Uid: 43"]).await, 200);
    assert_eq!(server.reviewed().uid.as_deref(), Some("43"), "another uid is another user: it is reviewed");
}

#[tokio::test]
async fn every_ca_of_a_bundle_is_trusted_unless_it_has_expired() {
    let server = TestServer::new().await;
    let next = Authority::new("next");
    let expired = Authority::expired("front-proxy-ca");
    let more_users = Authority::new("expired_users");
    let expired_users = Authority::expired("kubernetes");
    let front = format!("{}{}{}", expired.pem(), server.front_proxy.pem(), next.pem());
    let users = format!("{}{}{}", server.users.pem(), expired_users.pem(), more_users.pem());
    server.trusts(&[("requestheader-client-ca-file", &front), ("client-ca-file", &users)]);
    let proxied = |ca: &Authority| ca.client("front-proxy-client", &[]);
    let current_leaf = proxied(&server.front_proxy);
    let next_leaf = proxied(&next);
    let expired_leaf = proxied(&expired);
    eventually(|| async { server.status(Some(&next_leaf), &["X-Remote-User: hpa"]).await == 200 }).await;
    assert_eq!(server.status(Some(&current_leaf), &["X-Remote-User: hpa"]).await, 200);
    assert_eq!(
        server.status(Some(&expired_leaf), &["X-Remote-User: hpa"]).await,
        403,
        "its leaf is valid, it is not"
    );
    assert_eq!(server.status(Some(&more_users.client("alice", &[])), &[]).await, 200);
    assert_eq!(server.status(Some(&server.users.client("alice", &[])), &[]).await, 200);
    assert_eq!(server.status(Some(&expired_users.client("alice", &[])), &[]).await, 403);
}

#[tokio::test]
async fn the_proxys_user_wins_over_any_token() {
    let server = TestServer::new().await;
    for token in [
        None,
        Some("Authorization: Bearer good"),
        Some("Authorization: Bearer bad"),
        Some("Authorization: Bearer "),
    ] {
        let read_as = async |user| {
            let mut lines = vec![user];
            lines.extend(token);
            let answer = server.send(Some(&server.proxy), &format!("GET {READ}"), &lines).await;
            (answer.status, answer.body)
        };
        assert_eq!(read_as("X-Remote-User: hpa").await.0, 200, "{token:?}");
        let (status, body) = read_as("X-Remote-User: mallory").await;
        assert!(status == 403 && body.contains(r#"User \"mallory\" cannot list"#), "{token:?}: {body}");
    }
    assert_eq!(server.reviewer.tokens.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_proxy_that_names_nobody_is_authenticated_by_its_token() {
    let server = TestServer::new().await;
    let read = |lines: &'static [&'static str]| async {
        let answer = server.send(Some(&server.proxy), &format!("GET {READ}"), lines).await;
        (answer.status, answer.body)
    };
    for lines in [&[][..], &["X-Remote-Group: system:masters"], &["X-Remote-User: "]] {
        let (status, body) = read(lines).await;
        assert!(status == 403 && body.contains("system:anonymous"), "{lines:?}: {body}");
    }
    assert_eq!(read(&["Authorization: Bearer good"]).await.0, 200);
    assert_eq!(read(&["Authorization: Bearer bad"]).await.0, 401);
    assert_eq!(server.reviewed().name, "prometheus");
    assert_eq!(server.reviewed().groups, ["system:authenticated"]);
}
