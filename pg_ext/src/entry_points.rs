//! The functions that the extension's SQL declares with LANGUAGE c: each is its calling convention (version 1) and a guarded
//! function, with the context of errors around it.

use pgrx::pg_sys;

use crate::tables::{fdw, follow_trigger, lookup, replicated, share};
use crate::{cache, images, language, map, report, server, statistics};

static CALLING_CONVENTION: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };

macro_rules! entry_point {
    ($name:ident, $convention:ident, $work:path) => {
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $convention() -> &'static pg_sys::Pg_finfo_record {
            &CALLING_CONVENTION
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
            // SAFETY: PostgreSQL calls this, and the function is guarded.
            unsafe { report::with_context(|| $work(fcinfo)) }
        }
    };
}

entry_point!(transship_call_handler, pg_finfo_transship_call_handler, language::handle_call);
entry_point!(transship_validator, pg_finfo_transship_validator, language::validate);
entry_point!(transship_map, pg_finfo_transship_map, map::map);
entry_point!(transship_fdw_validator, pg_finfo_transship_fdw_validator, server::validate_options);
entry_point!(transship_fdw_handler, pg_finfo_transship_fdw_handler, fdw::handler);
entry_point!(transship_share, pg_finfo_transship_share, share::share);
entry_point!(transship_append, pg_finfo_transship_append, share::append);
entry_point!(transship_forget_table, pg_finfo_transship_forget_table, share::forget);
entry_point!(transship_follow_source, pg_finfo_transship_follow_source, follow_trigger::follow_source);
entry_point!(transship_leave_segment, pg_finfo_transship_leave_segment, follow_trigger::leave_segment);
entry_point!(transship_is_written_here, pg_finfo_transship_is_written_here, replicated::is_written_here);
entry_point!(transship_refuse_replicated, pg_finfo_transship_refuse_replicated, replicated::refuse_replicated);
entry_point!(transship_forget_view, pg_finfo_transship_forget_view, follow_trigger::forget_view);
entry_point!(transship_check_dropped_column, pg_finfo_transship_check_dropped_column, share::check_dropped_column);
entry_point!(transship_lookup, pg_finfo_transship_lookup, lookup::lookup);
entry_point!(transship_image_ddl, pg_finfo_transship_image_ddl, images::image_ddl);
entry_point!(transship_image_info, pg_finfo_transship_image_info, images::image_info);
entry_point!(transship_function_body, pg_finfo_transship_function_body, images::function_body);
entry_point!(transship_manager_replicas, pg_finfo_transship_manager_replicas, images::manager_replicas);
entry_point!(transship_manager_circuits, pg_finfo_transship_manager_circuits, images::manager_circuits);
entry_point!(transship_cache_reset, pg_finfo_transship_cache_reset, cache::reset);
entry_point!(transship_cache_counters, pg_finfo_transship_cache_counters, cache::counters);
entry_point!(transship_statistics, pg_finfo_transship_statistics, statistics::statistics);
entry_point!(transship_stat_reset, pg_finfo_transship_stat_reset, statistics::reset);
