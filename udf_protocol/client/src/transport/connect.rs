//! The way to a server: which transport it is, by its address, what it speaks and what is asked for.

use std::sync::Arc;

use udf_project::dialect::Dialect;
use udf_project::endpoint::Endpoint;
use udf_project::remote::Remote;
use udf_types::transport_name::TransportName;

use crate::transport::credentials::Credentials;
use crate::transport::envelope::Envelope;
use crate::transport::flight::Flight;
use crate::transport::put_get::PutGet;
use crate::transport::rest::{Form, Rest};
use crate::transport::{Takes, Transport};

/// The transport to a server of this protocol, over HTTP with columns in JSON. Nothing is connected before the first request.
pub fn to_endpoint(endpoint: &Endpoint, credentials: &Credentials) -> Arc<dyn Transport> {
    to_endpoint_in(endpoint, Form::Json, None, credentials)
}

/// The same of a server that takes so much, if that is known, with columns of a form where it is reached over HTTP.
pub fn to_endpoint_in(
    endpoint: &Endpoint,
    form: Form,
    takes: Option<Takes>,
    credentials: &Credentials,
) -> Arc<dyn Transport> {
    match endpoint.transport_name() {
        TransportName::Flight => Arc::new(Flight::new(endpoint.clone(), credentials, takes)),
        _ => Arc::new(Rest::new(endpoint.clone(), credentials, form, takes)),
    }
}

/// The transport to the server at one of the addresses; `name` is one that [`Remote::transport_for`] gave.
pub fn to_remote(
    remote: &Remote,
    endpoint: &Endpoint,
    name: TransportName,
    credentials: &Credentials,
) -> Arc<dyn Transport> {
    match remote.dialect() {
        Dialect::Transship if endpoint.transport_name() == TransportName::Flight => {
            Arc::new(Flight::of_any(endpoint.clone(), credentials))
        }
        Dialect::Transship => {
            let form = if name == TransportName::Socket { Form::Columns } else { Form::Json };
            to_endpoint_in(endpoint, form, None, credentials)
        }
        Dialect::PutGet => Arc::new(PutGet::new(endpoint.clone(), credentials)),
        dialect => Arc::new(Envelope::new(endpoint.clone(), remote.path(), dialect, credentials)),
    }
}
