//! The names of the ways in which batches travel.

use serde::{Deserialize, Serialize};

/// How batches travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportName {
    /// The fastest that the server offers for the kind of function.
    #[default]
    Auto,
    /// Columns in memory that engine and container share.
    Shm,
    /// Arrow Flight `DoExchange`.
    Flight,
    /// Columns as they lie in memory, over HTTP.
    Socket,
    /// Parquet files in memory that engine and container share; for comparison.
    Parquet,
    /// Columnar JSON over HTTP.
    Json,
}

impl TransportName {
    /// Every one of them, the default first.
    pub const ALL: [TransportName; 6] = [
        TransportName::Auto,
        TransportName::Shm,
        TransportName::Flight,
        TransportName::Socket,
        TransportName::Parquet,
        TransportName::Json,
    ];

    /// The name in SQL and in EXPLAIN.
    pub fn name(self) -> &'static str {
        match self {
            TransportName::Auto => "auto",
            TransportName::Shm => "shm",
            TransportName::Flight => "flight",
            TransportName::Socket => "socket",
            TransportName::Parquet => "parquet",
            TransportName::Json => "json",
        }
    }

    /// The transport of that name.
    pub fn from_name(name: &str) -> Option<TransportName> {
        TransportName::ALL.into_iter().find(|transport| transport.name() == name)
    }
}
