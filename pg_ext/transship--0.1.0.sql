-- complain if this script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION transship" to load this file. \quit

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
  IF concat_ws(',', current_setting('shared_preload_libraries'), current_setting('session_preload_libraries'),
               current_setting('local_preload_libraries')) !~ '\mtransship\M' THEN
    RAISE NOTICE 'container functions are called row by row until the library is preloaded'
      USING HINT = format('Run: ALTER DATABASE %I SET session_preload_libraries = ''transship''; and connect again.',
                          current_database());
  END IF;
END
$$;
