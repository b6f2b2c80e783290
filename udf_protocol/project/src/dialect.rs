//! What servers speak that do not speak this protocol (`docs/dialects.md`).

use serde::{Deserialize, Serialize};
use udf_types::{Error, Result};

use udf_types::transport_name::TransportName;

/// What a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// This protocol; over Flight also that of arrow-udf (RisingWave) and of Databend, which the server's answers tell.
    #[default]
    Transship,
    /// Flight with put, act and get: a table goes to a global place of the server, and results come from another.
    PutGet,
    /// Snowflake's external functions and service functions.
    Snowflake,
    /// SingleStore's external functions, in JSON.
    Singlestore,
    /// Redshift's Lambda functions, also behind the Lambda runtime interface emulator.
    Redshift,
    /// BigQuery's remote functions.
    Bigquery,
    /// MLflow's scoring server, input as `dataframe_split`.
    Mlflow,
    /// MLflow's scoring server, input as `dataframe_records`.
    MlflowRecords,
    /// MLflow's scoring server, input as `inputs`, a column by name.
    MlflowInputs,
    /// MLflow's scoring server before 2.0: columns and data at the top.
    MlflowSplit,
    /// An array of rows in, an array of results out, as simple functions on Azure take it.
    Array,
    /// Azure ML's `/score`.
    AzureMl,
}

/// Names and how each travels.
const DIALECTS: [(&str, Dialect, Option<TransportName>); 12] = [
    ("transship", Dialect::Transship, None),
    ("put-get", Dialect::PutGet, Some(TransportName::Flight)),
    ("snowflake", Dialect::Snowflake, Some(TransportName::Json)),
    ("singlestore", Dialect::Singlestore, Some(TransportName::Json)),
    ("redshift", Dialect::Redshift, Some(TransportName::Json)),
    ("bigquery", Dialect::Bigquery, Some(TransportName::Json)),
    ("mlflow", Dialect::Mlflow, Some(TransportName::Json)),
    ("mlflow-records", Dialect::MlflowRecords, Some(TransportName::Json)),
    ("mlflow-inputs", Dialect::MlflowInputs, Some(TransportName::Json)),
    ("mlflow-split", Dialect::MlflowSplit, Some(TransportName::Json)),
    ("array", Dialect::Array, Some(TransportName::Json)),
    ("azure-ml", Dialect::AzureMl, Some(TransportName::Json)),
];

impl Dialect {
    /// The dialect of that name.
    pub fn from_name(name: &str) -> Result<Dialect> {
        let found = DIALECTS.iter().find(|(known, ..)| *known == name);
        found.map(|(_, dialect, _)| *dialect).ok_or_else(|| {
            let names = DIALECTS.map(|(name, ..)| format!("\"{name}\"")).join(", ");
            Error::invalid_definition(format!("unrecognized dialect \"{name}\""))
                .with_hint(format!("The dialects are {names}."))
        })
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// The only transport that has it, if it is not on all.
    pub fn transport(self) -> Option<TransportName> {
        self.entry().2
    }

    /// Whether servers say the signatures of their functions.
    pub fn has_signatures(self) -> bool {
        self == Dialect::Transship
    }

    fn entry(self) -> &'static (&'static str, Dialect, Option<TransportName>) {
        DIALECTS.iter().find(|(_, dialect, _)| *dialect == self).expect("every dialect has an entry")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_serialized_form() {
        for (name, dialect, _) in DIALECTS {
            assert_eq!(Dialect::from_name(name).unwrap(), dialect);
            assert_eq!(serde_json::to_value(dialect).unwrap(), name);
            assert_eq!(dialect.name(), name);
        }
        assert!(Dialect::from_name("oracle").unwrap_err().hint().unwrap().contains("\"snowflake\""));
    }
}
