-- complain if this script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION transship" to load this file. \quit

-- Whoever owns the schema, or may create in it, can put functions and operators there that this script, or the extension's users, would find.
DO $$
BEGIN
  IF EXISTS (
    SELECT FROM pg_catalog.pg_namespace n
    CROSS JOIN LATERAL (
      SELECT n.nspowner AS role
      UNION ALL SELECT a.grantee FROM pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
    ) mine
    LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) mine.role
    WHERE n.nspname OPERATOR(pg_catalog.=) '@extschema@' AND r.rolsuper IS NOT TRUE
      AND (r.rolname OPERATOR(pg_catalog.=) current_user) IS NOT TRUE
  ) THEN
    RAISE EXCEPTION 'a role that is no superuser owns schema "@extschema@", or may create in it'
      USING ERRCODE = 'insufficient_privilege',
      HINT = 'Drop the schema; or look at what it holds, and take it over with ALTER SCHEMA @extschema@ OWNER TO and REVOKE CREATE ON SCHEMA @extschema@.';
  END IF;
END
$$;

CREATE FUNCTION transship_call_handler() RETURNS language_handler
LANGUAGE c AS 'MODULE_PATHNAME';

CREATE FUNCTION transship_validator(oid) RETURNS void
LANGUAGE c STRICT AS 'MODULE_PATHNAME';

CREATE TRUSTED LANGUAGE container
HANDLER transship_call_handler
VALIDATOR transship_validator;

-- Whoever may create functions in it may have code built and run: that is for the DBA to grant.
REVOKE USAGE ON LANGUAGE container FROM PUBLIC;

COMMENT ON LANGUAGE container IS 'functions that run in containers';

DO $$
BEGIN
  IF pg_catalog.concat_ws(',', current_setting('shared_preload_libraries'), current_setting('session_preload_libraries'),
               current_setting('local_preload_libraries')) OPERATOR(pg_catalog.!~) '\mtransship\M' THEN
    RAISE NOTICE 'container functions are called row by row until the library is preloaded'
      USING HINT = pg_catalog.format('Run: ALTER DATABASE %I SET session_preload_libraries = ''transship''; and connect again.',
                          current_database());
  END IF;
END
$$;
