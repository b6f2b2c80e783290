//! Who somebody is at a registry of images. It travels with one request to the manager, and is in no message and no log.

use serde::{Deserialize, Serialize};

/// A login at a registry.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryLogin {
    /// User; may be empty if there is a token.
    pub user: String,
    /// Password or token.
    pub secret: String,
    /// Whether the secret is a token that the registry has given (an identity token of OAuth 2.0).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_token: bool,
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryLogin(...)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Request;

    #[test]
    fn a_request_shows_no_secret() {
        let login = RegistryLogin { user: "founder".to_string(), secret: "s3cret".to_string(), is_token: false };
        let request = Request::Push { image: "a:1".to_string(), reference: "r/a:1".to_string(), login: Some(login) };
        let shown = format!("{request:?}");
        assert!(!shown.contains("s3cret") && !shown.contains("founder") && shown.contains("r/a:1"), "{shown}");
        let sent = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&sent).unwrap(), request);
    }
}
