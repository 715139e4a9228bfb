//! Logs and our own metric families.
