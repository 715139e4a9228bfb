//! What rules need from other rooms: the kinds of objects of the API server, and lists of objects.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use smol_str::SmolStr;

use super::kinds::ObjectKind;

/// Reads kinds and objects from the API server.
pub trait ObjectApi: Send + Sync + 'static {
    /// All kinds of objects, in the API server's order of preference, or why they cannot be read.
    fn kinds(&self) -> BoxFuture<'_, Result<Vec<ObjectKind>, String>>;

    /// Some of the objects of a kind, or why they cannot be listed: more than `limit` are an error too.
    fn list<'a>(
        &'a self,
        kind: &'a ObjectKind,
        selection: Selection<'a>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ListedObject>, String>>;
}

/// Which objects are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection<'a> {
    /// Empty for all.
    pub namespace: &'a str,
    /// A label selector.
    pub labels: &'a str,
    /// A field selector.
    pub fields: &'a str,
    /// Whether their labels are needed.
    pub has_labels: bool,
}

/// An object of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// Empty for an object without one.
    pub namespace: SmolStr,
    /// Its name.
    pub name: SmolStr,
    /// Its labels; none where they are not needed.
    pub labels: BTreeMap<String, String>,
}

#[cfg(test)]
pub(super) mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// An API server that answers with these kinds, and lists no objects.
    pub(in crate::rules) struct FakeKinds<F>(pub F);

    impl<F> ObjectApi for FakeKinds<F>
    where
        F: Fn() -> Result<Vec<ObjectKind>, String> + Send + Sync + 'static,
    {
        fn kinds(&self) -> BoxFuture<'_, Result<Vec<ObjectKind>, String>> {
            async { (self.0)() }.boxed()
        }

        fn list<'a>(
            &'a self,
            _: &'a ObjectKind,
            _: Selection<'a>,
            _: usize,
        ) -> BoxFuture<'a, Result<Vec<ListedObject>, String>> {
            async { Err("it lists no objects".to_owned()) }.boxed()
        }
    }
}
