//! A row of pg_proc as something to call: signature, body, target. Kept per backend until the row changes.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pgrx::pg_sys;
use udf_client::cache::message::Namespace;
use udf_client::cache::{CacheUse, namespace_of};
use udf_client::dispatch::{Call, Target};
use udf_client::route::{Protocol, Server};
use udf_client::transport::credentials::Credentials;
use udf_project::body::{FunctionBody, OnError};
use udf_project::manifest::FunctionEntry;
use udf_project::remote::Remote;
use udf_types::signature::{Argument, FunctionKind, RowErrors, Signature, Volatility};
use udf_types::transport_name::TransportName;
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use crate::datum::{CompositeVersion, SqlType, composite_version};
use crate::host::Backend;
use crate::pg::catalog::{self, ProcRow, type_name};
use crate::tables::given::{self, Named};
use crate::{allowed, chosen_images, report, server, session, settings};

/// A container function.
#[derive(Debug)]
pub struct Function {
    /// Its name in SQL.
    pub name: String,
    /// The same in the database's encoding.
    pub name_in_database: CString,
    /// Whose it is.
    owner: pg_sys::Oid,
    /// Its body.
    pub body: FunctionBody,
    /// What it is called for.
    pub role: Role,
    /// What is called in the container. Of a part of an aggregate, [`Function::aggregate`] knows the rest.
    pub signature: Signature,
    /// Argument types in SQL, those of type internal left out.
    pub arguments: Vec<SqlType>,
    /// Argument types as they are declared.
    #[cfg(feature = "lift-ordinary")]
    argument_oids: Vec<pg_sys::Oid>,
    /// Result type in SQL.
    pub result: SqlType,
    /// Whether a NULL argument makes the result NULL.
    pub is_strict: bool,
    /// How often the result may change.
    pub volatility: Volatility,
    /// The image that the body stands for, once it was asked for.
    digest: OnceCell<String>,
    /// The name by which lists of allowed images know that image, as [`allowed::check_call`] found it.
    listed: OnceCell<Option<String>>,
    /// The composite types among arguments and result, as they were when the function was looked up.
    composites: Vec<CompositeVersion>,
    /// Whether these are as the container knows them.
    is_adapted: bool,
}

/// What the container offers.
struct Offered {
    signature: Signature,
    /// Who offers it, for errors.
    place: String,
    /// The image's digest, if there is an image.
    digest: Option<String>,
}

/// What a function is called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// For a result, or for a set of them.
    Direct,
    /// By `transship.map`.
    Map,
    /// As SFUNC of an aggregate: (internal, arguments...) returns internal.
    Accumulate,
    /// As FINALFUNC, or as SERIALFUNC: (internal) returns anything.
    Finish,
    /// As COMBINEFUNC: (internal, internal) returns internal.
    Combine,
    /// As DESERIALFUNC: (bytea, internal) returns internal.
    Deserialize,
}

/// Which version of a row of pg_proc it is: its xmin, and where it lies.
pub type Version = (u32, u32, u16);

thread_local! {
    static CACHE: RefCell<HashMap<pg_sys::Oid, (Version, Rc<Function>)>> = RefCell::default();
}

/// The container function with this oid, as its row is now.
pub fn lookup(oid: pg_sys::Oid) -> Result<Rc<Function>> {
    cached(oid).map_or_else(|| read(oid), Ok)
}

/// As [`lookup`], for a call: with composite types as the container knows them. A row type may have changed since the function
/// was created, and columns travel without their names and, in memory, without their types.
///
/// Of a function that is new to the session, the client starts while the row is read, and then connects to the manager.
///
/// In a parallel worker, it is of the image that the leader calls.
pub fn lookup_to_call(oid: pg_sys::Oid) -> Result<Rc<Function>> {
    let function = adapted(oid)?;
    let version = || catalog::proc_version(oid).map(|(_, version)| version);
    let Some(digest) = chosen_images::of_leader(oid, version) else { return Ok(function) };
    let of_leader = function.of_leader(oid, &digest)?;
    if !Rc::ptr_eq(&of_leader, &function) {
        CACHE.with_borrow_mut(|cache| cache.get_mut(&oid).map(|(_, known)| *known = of_leader.clone()));
    }
    Ok(of_leader)
}

fn adapted(oid: pg_sys::Oid) -> Result<Rc<Function>> {
    let function = match cached(oid) {
        Some(function) => function,
        None => {
            if !cfg!(feature = "lift-ordinary") {
                session::start();
            }
            let function = read(oid)?;
            if function.body.image.is_some() || function.body.source.is_some() {
                session::prepare();
            }
            function
        }
    };
    if function.is_adapted || cfg!(feature = "lift-ordinary") {
        return Ok(function);
    }
    let row = catalog::read_proc(oid).ok_or_else(|| unknown(oid))?;
    let version = row.version;
    let mut function = Function::from_row(row)?;
    function.adapt()?;
    let function = Rc::new(function);
    CACHE.with_borrow_mut(|cache| cache.insert(oid, (version, function.clone())));
    Ok(function)
}

/// The function as this session has read it, if its row and its row types are still the same.
fn cached(oid: pg_sys::Oid) -> Option<Rc<Function>> {
    let version = catalog::proc_version(oid).map(|(_, version)| version);
    CACHE.with_borrow(|cache| {
        let is_current =
            |function: &Function| function.composites.iter().all(|known| composite_version(known.0, known.1) == *known);
        cache
            .get(&oid)
            .filter(|(cached, function)| Some(*cached) == version && is_current(function))
            .map(|(_, function)| function.clone())
    })
}

/// The functions that this session has asked for an image, with the versions of their rows, and the digests of these. Of one that was
/// replaced since, nobody has asked.
pub fn chosen() -> Vec<(pg_sys::Oid, Version, String)> {
    let known: Vec<_> = CACHE.with_borrow(|cache| {
        let asked = cache.iter().filter(|(_, (_, function))| function.is_open() && function.digest.get().is_some());
        asked.map(|(oid, (version, _))| (*oid, *version)).collect()
    });
    let chosen =
        known.into_iter().filter_map(|(oid, version)| Some((oid, version, cached(oid)?.digest.get()?.clone())));
    chosen.collect()
}

/// Reads the function's row.
fn read(oid: pg_sys::Oid) -> Result<Rc<Function>> {
    let row = catalog::read_proc(oid).ok_or_else(|| unknown(oid))?;
    let version = row.version;
    #[cfg(feature = "lift-ordinary")]
    let function = Function::of_ordinary(row)?;
    #[cfg(not(feature = "lift-ordinary"))]
    let function = Function::from_row(row)?;
    let function = Rc::new(function);
    CACHE.with_borrow_mut(|cache| cache.insert(oid, (version, function.clone())));
    Ok(function)
}

/// The error for a function that reports errors, and has no place for them in its result.
fn not_reported() -> Error {
    Error::invalid_definition(
        "a function with on_error = \"report\" must return (value T, error text), for some type T",
    )
    .with_hint("Declare OUT value T, OUT error text, or a composite type that has these two columns.")
}

fn unknown(oid: pg_sys::Oid) -> Error {
    Error::new(Kind::FunctionNotFound, format!("container function with oid {} does not exist", oid.to_u32()))
}

/// Whether the function is in LANGUAGE container, whose oid is `language`.
pub fn is_container_function(oid: pg_sys::Oid, language: pg_sys::Oid) -> bool {
    catalog::proc_version(oid).is_some_and(|(found, _)| found == language)
}

impl Function {
    /// Reads a row; the error says what a container function cannot be.
    pub fn from_row(row: ProcRow) -> Result<Function> {
        let body = FunctionBody::parse(&row.source)?;
        Function::with_body(row, body)
    }

    fn with_body(row: ProcRow, body: FunctionBody) -> Result<Function> {
        let refuse = |what: &str| Err(Error::new(Kind::UnsupportedType, format!("container functions cannot {what}")));
        match row.kind {
            b'f' => {}
            b'p' => return refuse("be procedures"),
            _ => return refuse("be window functions"),
        }
        let role = Role::of(&row, &body)?;
        let (mut arguments, mut named) = (Vec::new(), Vec::new());
        for (oid, name) in row.argument_types.iter().zip(&row.argument_names) {
            if *oid != pg_sys::INTERNALOID && role != Role::Deserialize {
                let argument = SqlType::new(*oid)?;
                named.push(Argument { name: name.clone(), ty: argument.ty.clone() });
                arguments.push(argument);
            }
        }
        let result = match row.result_type {
            // A state, which travels as bytes.
            pg_sys::INTERNALOID => SqlType::new(pg_sys::BYTEAOID)?,
            declared => match catalog::result_descriptor(row.oid) {
                // SAFETY: PostgreSQL blessed the descriptor.
                Some(descriptor) if declared == pg_sys::RECORDOID => unsafe { SqlType::of_record(descriptor)? },
                _ => SqlType::new(declared)?,
            },
        };
        let kind = match role {
            Role::Direct if row.is_set => FunctionKind::Table,
            Role::Direct => FunctionKind::Scalar,
            Role::Map => FunctionKind::Map,
            _ => FunctionKind::Aggregate,
        };
        let mut composites = Vec::new();
        arguments.iter().chain([&result]).for_each(|found| found.note_composites(&mut composites));
        if body.on_error != OnError::Fail && kind != FunctionKind::Scalar {
            let message = "the key \"on_error\" is only for functions that return one value for each row";
            return Err(Error::invalid_definition(message)
                .with_detail("Set-returning, map and aggregate functions fail at the first error."));
        }
        let volatility = match row.volatility {
            b'i' => Volatility::Immutable,
            b's' => Volatility::Stable,
            _ => Volatility::Volatile,
        };
        let signature = Signature {
            function: body.function.clone().unwrap_or_else(|| row.name.clone()),
            kind,
            arguments: named,
            result: match body.on_error {
                OnError::Fail | OnError::Null => result.ty.clone(),
                OnError::Report => result.reported().ok_or_else(not_reported)?.ty.clone(),
            },
            row_errors: match (body.on_error, volatility) {
                (OnError::Fail, _) => None,
                (_, Volatility::Volatile) => Some(RowErrors::Once),
                _ => Some(RowErrors::Again),
            },
        };
        Ok(Function {
            name: row.name,
            name_in_database: row.name_in_database,
            owner: row.owner,
            body,
            role,
            signature,
            arguments,
            #[cfg(feature = "lift-ordinary")]
            argument_oids: row.argument_types,
            result,
            is_strict: row.is_strict,
            volatility,
            digest: OnceCell::new(),
            listed: OnceCell::new(),
            is_adapted: composites.is_empty(),
            composites,
        })
    }

    /// A function in any language, as it would be if it were a container's.
    #[cfg(feature = "lift-ordinary")]
    pub fn of_ordinary(row: ProcRow) -> Result<Function> {
        Function::with_body(row, FunctionBody::default())
    }

    /// A function that would return what this one takes as argument `position`.
    #[cfg(feature = "lift-ordinary")]
    pub fn of_argument(&self, position: usize) -> Function {
        let oid = self.argument_oids[position];
        let result = SqlType::new(oid).expect("the argument's type is supported");
        Function {
            name: self.name.clone(),
            name_in_database: self.name_in_database.clone(),
            owner: self.owner,
            is_adapted: true,
            body: FunctionBody::default(),
            role: Role::Direct,
            signature: Signature { result: result.ty.clone(), ..self.signature.clone() },
            arguments: Vec::new(),
            argument_oids: Vec::new(),
            result,
            is_strict: false,
            volatility: Volatility::Volatile,
            digest: OnceCell::new(),
            listed: OnceCell::new(),
            composites: Vec::new(),
        }
    }

    /// The error for a map function where a function is called for a row.
    pub fn not_direct(&self) -> Error {
        Error::new(Kind::UnsupportedType, format!("map function \"{}\" cannot be called directly", self.name))
            .with_hint("Call it with transship.map, which gives it the rows of a query.")
    }

    /// What is called in the container for an aggregate whose SFUNC is this function and whose FINALFUNC is `finish`.
    pub fn aggregate(&self, finish: &Function) -> Result<Arc<Call>> {
        let signature = Signature { result: finish.signature.result.clone(), ..self.signature.clone() };
        let user = catalog::current_user();
        self.call_of(signature, user, &self.find_tables(user))
    }

    /// How its batches are to travel.
    fn wanted_transport(&self) -> TransportName {
        self.body.transport.unwrap_or_else(settings::transport)
    }

    /// How its batches will travel, as far as that is known before a container is asked; for EXPLAIN.
    pub fn transport(&self) -> TransportName {
        let wanted = self.wanted_transport();
        match self.remote() {
            Some(Ok(remote)) => Protocol::choose(Server::Remote(&remote), wanted, self.signature.kind).name(),
            Some(Err(_)) => TransportName::Auto,
            None => wanted,
        }
    }

    /// The server that the body names, if it names one.
    fn remote(&self) -> Option<Result<Remote>> {
        match &self.body.server {
            Some(name) => Some(server::remote(name)),
            None => self.body.remote().transpose(),
        }
    }

    /// Most rows per batch.
    pub fn max_batch_rows(&self) -> usize {
        self.body.max_batch_rows.unwrap_or_else(settings::batch_rows)
    }

    /// All that an exchange of this user's needs to know; `tables` are those that were [found](Function::find_tables) for it.
    pub fn call(&self, user: pg_sys::Oid, tables: &[Named]) -> Result<Arc<Call>> {
        self.call_of(self.signature.clone(), user, tables)
    }

    /// How its results are kept, if they are. ALTER FUNCTION may have made it VOLATILE since it was created.
    pub fn cache_use(&self) -> Option<CacheUse> {
        let is_wanted = self.body.cache && self.check_cache().is_ok();
        if is_wanted { settings::cache_use(self.body.cache_ttl.map(Duration::from_secs)) } else { None }
    }

    /// Refuses to keep results that a call may change.
    pub fn check_cache(&self) -> Result<()> {
        if self.body.cache && self.signature.kind != FunctionKind::Scalar {
            return Err(Error::invalid_definition(
                "the key \"cache\" is only for functions that return one value for each row",
            ));
        }
        if self.body.cache && self.volatility != Volatility::Immutable {
            return Err(Error::invalid_definition("the key \"cache\" is only for IMMUTABLE functions")
                .with_hint("Declare the function IMMUTABLE if its results depend on nothing but its arguments."));
        }
        Ok(())
    }

    /// Under which name its results are kept, whoever calls it. `finds_image` says whether the manager is asked for an image whose
    /// digest is not known; none if it is not.
    pub fn namespace(&self, finds_image: bool) -> Result<Option<Namespace>> {
        let target = match (self.remote(), self.digest.get().or(self.body.digest.as_ref())) {
            (Some(remote), _) => Target::Remote { remote: remote?, credentials: Credentials::default() },
            (None, Some(digest)) if !finds_image => {
                Target::Image { manager: settings::manager_socket(), digest: digest.clone() }
            }
            (None, _) if finds_image => self.target(catalog::current_user())?,
            (None, _) => return Ok(None),
        };
        Ok(Some(namespace_of(&target, &self.signature)))
    }

    /// Refuses to let a function that never changes read tables, which do.
    pub fn check_tables(&self) -> Result<()> {
        if self.body.tables.is_empty() || self.volatility != Volatility::Immutable {
            return Ok(());
        }
        Err(Error::invalid_definition("the key \"tables\" is not for IMMUTABLE functions")
            .with_hint("Declare the function STABLE: its results depend on the tables."))
    }

    /// The tables that its body names, for a user. Raises an error if one is missing, or the user must not read it.
    pub fn find_tables(&self, user: pg_sys::Oid) -> Vec<Named> {
        report::unwrap(self.check_tables());
        given::find(&self.body.tables, user)
    }

    fn call_of(&self, signature: Signature, user: pg_sys::Oid, tables: &[Named]) -> Result<Arc<Call>> {
        Ok(Arc::new(Call {
            target: self.target(user)?,
            transport: self.wanted_transport(),
            signature,
            volatility: self.volatility,
            batch_timeout: self.body.timeout_ms.map_or_else(settings::batch_timeout, Duration::from_millis),
            start_timeout: settings::start_timeout(),
            tables: given::open(tables)?,
        }))
    }

    /// Checks the declaration against what the container offers, and gives the image's digest if there is an image.
    pub fn check(&self) -> Result<Option<String>> {
        let Some(offered) = self.offered()? else { return Ok(None) };
        self.expected(&offered.signature).check_against(&offered.signature, &offered.place)?;
        Ok(offered.digest)
    }

    /// Whether a call is allowed, for those who own the function: as far as the image's name says, or with its digest.
    pub fn check_allowed(&self, digest: Option<&str>) -> Result<()> {
        let Function { name, owner, body, .. } = self;
        match digest {
            _ if body.server.is_some() || body.endpoint.is_some() => Ok(()),
            None => allowed::check_name(name, *owner, body),
            Some(digest) => allowed::check_call(name, *owner, body, digest, &self.listed),
        }
    }

    /// Leaves out what the container does not know of arguments' row types: columns that were added since. Any other change
    /// of them is an error.
    fn adapt(&mut self) -> Result<()> {
        self.is_adapted = true;
        self.check_allowed(None)?;
        let Some(offered) = self.offered()? else { return Ok(()) };
        let theirs = &offered.signature.arguments;
        for ((own, named), theirs) in self.arguments.iter_mut().zip(&mut self.signature.arguments).zip(theirs) {
            own.narrow(&theirs.ty);
            named.ty = own.ty.clone();
        }
        self.expected(&offered.signature).check_against(&offered.signature, &offered.place).map_err(|error| {
            if error.kind() != Kind::SignatureMismatch {
                return error;
            }
            let mut types: Vec<_> = self.composites.iter().map(|(oid, ..)| format!("\"{}\"", type_name(*oid))).collect();
            types.dedup();
            let message = format!("container function \"{}\" does not match {} any more", self.name, offered.place);
            let hint = format!(
                "Row type {} has changed since the function was created. Build the image for what it is now, and create the function again.",
                types.join(" or ")
            );
            Error::new(Kind::SignatureMismatch, message).with_detail(error.detail().unwrap_or_default()).with_hint(hint)
        })?;
        // What it was adapted to is what is called.
        if let Some(digest) = offered.digest {
            self.digest.get_or_init(|| digest);
        }
        Ok(())
    }

    /// What the container offers as this function; none from a server that does not say.
    fn offered(&self) -> Result<Option<Offered>> {
        if let Some(target) = self.server(catalog::current_user())? {
            if matches!(&target, Target::Remote { remote, .. } if !remote.dialect().has_signatures()) {
                return Ok(None);
            }
            let name = &self.signature.function;
            let timeout = settings::start_timeout();
            let signature = session::client().signature(&Backend, &target, self.wanted_transport(), name, timeout)?;
            let place = format!("the server at \"{}\"", self.body.place());
            return Ok(Some(Offered { signature, place, digest: None }));
        }
        let image = self.image()?;
        let place = match &self.body.image {
            Some(name) => format!("image \"{name}\""),
            None => "the inline source".to_string(),
        };
        let entry = image.manifest.function(Some(&self.signature.function), &place)?;
        let signature = entry.signature()?.ok_or_else(|| Error::signature_not_said(&entry.name, &place))?;
        Ok(Some(Offered { signature, place, digest: Some(image.digest) }))
    }

    /// The signature that the declaration asks for. A part of an aggregate declares only a part of it.
    fn expected(&self, offered: &Signature) -> Signature {
        let mut expected = self.signature.clone();
        if expected.kind == FunctionKind::Aggregate {
            if self.role != Role::Accumulate {
                expected.arguments = offered.arguments.clone();
            }
            // A function that returns bytea may as well be the SERIALFUNC.
            if self.role != Role::Finish || expected.result == Type::Bytea {
                expected.result = offered.result.clone();
            }
        }
        expected
    }

    /// The server that the body names, if it names one, with what the user has for it.
    fn server(&self, user: pg_sys::Oid) -> Result<Option<Target>> {
        match (self.body.remote()?, &self.body.server) {
            (Some(remote), _) => Ok(Some(Target::Remote { remote, credentials: Credentials::default() })),
            (None, Some(name)) => server::target(name, user).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn target(&self, user: pg_sys::Oid) -> Result<Target> {
        if let Some(target) = self.server(user)? {
            return Ok(target);
        }
        let digest = match (self.digest.get(), &self.body.digest) {
            (Some(digest), _) => digest.clone(),
            // Inline code can be built again where its image is missing, as after a restore elsewhere.
            (None, Some(digest)) if self.body.source.is_none() => digest.clone(),
            // Nobody has checked the declaration, or not against this image.
            (None, _) => {
                self.check_allowed(None)?;
                let digest =
                    self.check()?.ok_or_else(|| Error::invalid_definition("the function body names no image"))?;
                self.digest.get_or_init(|| digest).clone()
            }
        };
        self.check_allowed(Some(&digest))?;
        Ok(Target::Image { manager: settings::manager_socket(), digest })
    }

    /// The image that this session calls, where another one would have to ask what the body stands for now; none where the body says it.
    ///
    /// # Errors
    /// Nobody can be asked. Who then calls it is told why.
    pub fn chosen_digest(&self, user: pg_sys::Oid) -> Result<Option<String>> {
        if self.is_open() {
            self.target(user)?;
        }
        Ok(self.digest.get().filter(|_| self.is_open()).cloned())
    }

    /// Whether the body does not say which image it stands for.
    fn is_open(&self) -> bool {
        self.body.source.is_some() || (self.body.image.is_some() && self.body.digest.is_none())
    }

    /// The function as a parallel worker is to call it: that of the image that its leader calls.
    pub fn of_leader(self: &Rc<Function>, oid: pg_sys::Oid, digest: &str) -> Result<Rc<Function>> {
        if self.digest.get_or_init(|| digest.to_string()) == digest {
            return Ok(self.clone());
        }
        // It was adapted to another one.
        let mut function = Function::from_row(catalog::read_proc(oid).ok_or_else(|| unknown(oid))?)?;
        function.body.digest = Some(digest.to_string());
        function.adapt()?;
        let is_it = function.digest.get().is_some_and(|found| found == digest);
        if is_it && function.signature == self.signature && function.composites == self.composites {
            return Ok(Rc::new(function));
        }
        let message =
            format!("container function \"{}\" is of another image than when the session first called it", self.name);
        Err(Error::new(Kind::SignatureMismatch, message).with_hint("Begin a new session."))
    }

    /// The image: the pinned one, or the one that the name stands for now, or the one built from inline code.
    fn image(&self) -> Result<udf_client::control::ImageInfo> {
        let (manager, entry) = (settings::manager_socket(), FunctionEntry::declared(&self.signature));
        let (start, build) = (settings::start_timeout(), settings::build_timeout());
        session::client().find_image(&Backend, &manager, &self.body, entry, start, build)
    }
}

impl Role {
    fn of(row: &ProcRow, body: &FunctionBody) -> Result<Role> {
        const INTERNAL: pg_sys::Oid = pg_sys::INTERNALOID;
        let returns_state = row.result_type == INTERNAL;
        let role = match row.argument_types.as_slice() {
            arguments if !returns_state && !arguments.contains(&INTERNAL) => {
                return Ok(if body.kind == Some(FunctionKind::Map) { Role::Map } else { Role::Direct });
            }
            [INTERNAL, INTERNAL] if returns_state => Role::Combine,
            [pg_sys::BYTEAOID, INTERNAL] if returns_state => Role::Deserialize,
            [INTERNAL, arguments @ ..] if returns_state && !arguments.contains(&INTERNAL) => Role::Accumulate,
            [INTERNAL] if !returns_state => Role::Finish,
            _ => {
                return Err(Error::new(
                    Kind::UnsupportedType,
                    "container functions take and return internal only as parts of an aggregate",
                )
                .with_hint(
                    "SFUNC is (internal, arguments...) returns internal, FINALFUNC is (internal) returns the result.",
                ));
            }
        };
        if body.source.is_some() || row.is_set {
            return Err(Error::invalid_definition(
                "the parts of an aggregate need the key \"image\" or \"endpoint\", and return no sets",
            ));
        }
        Ok(role)
    }
}
