//! Kubernetes, both ways: custom resources, watches, ownership, status, state objects, lease and access reviews.
