//! A row of pg_proc as something to call: signature, body, target. Kept per backend until the row changes.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pgrx::pg_sys;
use udf_protocol::dispatch::{Call, Target};
use udf_protocol::manifest::{FunctionBody, TransportName};
use udf_protocol::signature::{Argument, Signature, Volatility};
use udf_protocol::transport::Endpoint;
use udf_protocol::{Error, Kind, Result};

use crate::host::Backend;
use crate::pg::catalog::{self, ProcRow};
use crate::{datum, session, settings};

/// A container function.
#[derive(Debug)]
pub struct Function {
    /// Its name in SQL.
    pub name: String,
    /// Its body.
    pub body: FunctionBody,
    /// What is called in the container.
    pub signature: Signature,
    /// Argument types in SQL.
    pub argument_oids: Vec<pg_sys::Oid>,
    /// Result type in SQL.
    pub result_oid: pg_sys::Oid,
    /// Whether a NULL argument makes the result NULL.
    pub is_strict: bool,
    /// How often the result may change.
    pub volatility: Volatility,
    /// The image that the body stands for, once it was asked for.
    digest: OnceCell<String>,
}

type Version = (u32, u32, u16);

thread_local! {
    static CACHE: RefCell<HashMap<pg_sys::Oid, (Version, Rc<Function>)>> = RefCell::default();
}

/// The container function with this oid, as its row is now.
pub fn lookup(oid: pg_sys::Oid) -> Result<Rc<Function>> {
    let version = catalog::proc_version(oid).map(|(_, version)| version);
    let cached = CACHE.with_borrow(|cache| {
        cache.get(&oid).filter(|(cached, _)| Some(*cached) == version).map(|(_, function)| function.clone())
    });
    if let Some(function) = cached {
        return Ok(function);
    }
    let row = catalog::read_proc(oid).ok_or_else(|| {
        Error::new(Kind::FunctionNotFound, format!("container function with oid {} does not exist", oid.to_u32()))
    })?;
    let version = row.version;
    let function = Rc::new(Function::from_row(row)?);
    CACHE.with_borrow_mut(|cache| cache.insert(oid, (version, function.clone())));
    Ok(function)
}

/// Whether the function is in LANGUAGE container, whose oid is `language`.
pub fn is_container_function(oid: pg_sys::Oid, language: pg_sys::Oid) -> bool {
    catalog::proc_version(oid).is_some_and(|(found, _)| found == language)
}

impl Function {
    /// Reads a row; the error says what a container function cannot be.
    pub fn from_row(row: ProcRow) -> Result<Function> {
        let refuse = |what: &str| Err(Error::new(Kind::UnsupportedType, format!("container functions cannot {what}")));
        match row.kind {
            b'f' => {}
            b'p' => return refuse("be procedures"),
            _ => return refuse("be window functions"),
        }
        if row.is_set {
            return refuse("return sets");
        }
        if row.has_output_arguments {
            return refuse("have OUT, INOUT, VARIADIC or TABLE arguments");
        }
        if row.is_variadic {
            return refuse("have VARIADIC arguments");
        }
        let body = FunctionBody::parse(&row.source)?;
        let mut arguments = Vec::with_capacity(row.argument_types.len());
        for (oid, name) in row.argument_types.iter().zip(&row.argument_names) {
            arguments.push(Argument { name: name.clone(), ty: datum::type_of(*oid)? });
        }
        let signature = Signature {
            function: body.function.clone().unwrap_or_else(|| row.name.clone()),
            arguments,
            result: datum::type_of(row.result_type)?,
        };
        Ok(Function {
            name: row.name,
            body,
            signature,
            argument_oids: row.argument_types,
            result_oid: row.result_type,
            is_strict: row.is_strict,
            volatility: match row.volatility {
                b'i' => Volatility::Immutable,
                b's' => Volatility::Stable,
                _ => Volatility::Volatile,
            },
            digest: OnceCell::new(),
        })
    }

    /// How its batches travel.
    pub fn transport(&self) -> TransportName {
        match self.body.endpoint.as_deref().map(Endpoint::parse) {
            Some(Ok(Endpoint::JsonTcp(_) | Endpoint::JsonUnix(_))) => TransportName::Json,
            Some(_) => TransportName::Flight,
            None => self.body.transport.unwrap_or_else(settings::transport),
        }
    }

    /// Most rows per batch.
    pub fn max_batch_rows(&self) -> usize {
        self.body.max_batch_rows.unwrap_or_else(settings::batch_rows)
    }

    /// All that an exchange needs to know.
    pub fn call(&self) -> Result<Arc<Call>> {
        Ok(Arc::new(Call {
            target: self.target()?,
            transport: self.transport(),
            signature: self.signature.clone(),
            volatility: self.volatility,
            batch_timeout: self.body.timeout_ms.map_or_else(settings::batch_timeout, Duration::from_millis),
            start_timeout: settings::start_timeout(),
        }))
    }

    /// Checks the declaration against what the container offers, and gives the image's digest if there is an image.
    pub fn check(&self) -> Result<Option<String>> {
        if let Some(endpoint) = &self.body.endpoint {
            let target = Target::Endpoint(Endpoint::parse(endpoint)?);
            let name = &self.signature.function;
            let timeout = settings::start_timeout();
            let offered = session::client().signature(&Backend, &target, self.transport(), name, timeout)?;
            self.signature.check_against(&offered, &format!("the server at \"{endpoint}\""))?;
            return Ok(None);
        }
        let image = self.image()?;
        let place = match &self.body.image {
            Some(name) => format!("image \"{name}\""),
            None => "the inline source".to_string(),
        };
        let entry = image.manifest.functions.iter().find(|entry| entry.name == self.signature.function);
        let Some(offered) = entry.map(|entry| entry.signature()).transpose()?.flatten() else {
            let names: Vec<String> =
                image.manifest.functions.iter().map(|entry| format!("\"{}\"", entry.name)).collect();
            return Err(Error::new(
                Kind::FunctionNotFound,
                format!("{place} has no function \"{}\"", self.signature.function),
            )
            .with_detail(format!("It offers {}.", names.join(", ")))
            .with_hint("Name one of them with the key \"function\" in the function body."));
        };
        self.signature.check_against(&offered, &place)?;
        Ok(Some(image.digest))
    }

    fn target(&self) -> Result<Target> {
        if let Some(endpoint) = &self.body.endpoint {
            return Ok(Target::Endpoint(Endpoint::parse(endpoint)?));
        }
        let digest = match (self.digest.get(), &self.body.digest) {
            (Some(digest), _) => digest.clone(),
            // Inline code can be built again where its image is missing, as after a restore elsewhere.
            (None, Some(digest)) if self.body.source.is_none() => digest.clone(),
            (None, _) => {
                let digest = self.image()?.digest;
                self.digest.get_or_init(|| digest).clone()
            }
        };
        Ok(Target::Image { manager: settings::manager_socket(), digest })
    }

    /// The image: the pinned one, or the one that the name stands for now, or the one built from inline code.
    fn image(&self) -> Result<udf_protocol::control::ImageInfo> {
        let client = session::client();
        let manager = settings::manager_socket();
        let wanted = self.body.digest.as_ref().or(self.body.image.as_ref());
        if let Some(wanted) = wanted {
            let found = client.resolve_image(&Backend, &manager, wanted, settings::start_timeout());
            match found {
                Err(error) if error.kind() == Kind::ImageNotFound && self.body.source.is_some() => {}
                other => return other,
            }
        }
        match (self.body.inline_manifest(&self.signature), &self.body.source) {
            (Some(manifest), Some(source)) => {
                client.build_inline(&Backend, &manager, manifest, source, settings::build_timeout())
            }
            _ => Err(Error::new(Kind::InvalidDefinition, "the function body names no image")),
        }
    }
}
