//! What no host should do: calls that an extension must refuse without falling over. The session has ended before.

use crate::abi::Guid;
use crate::extension::{Extension, Outcome};
use crate::types::ApiType;

/// Makes the calls; the error says which of them went wrong. What the extension writes to stderr meanwhile is its refusals.
pub fn run(extension: &Extension, id: Guid) -> Result<(), String> {
    let stranger = Guid { data1: !id.data1, ..id };
    let int = ApiType { code: crate::types::SLONG, size: 4, digits: 0 };
    let time = ApiType { code: crate::types::TIME, size: 16, digits: 7 };
    let script = "image = \"probe:1\"";
    refused("InitColumn of an unknown session", extension.init_column(stranger, 0, 0, "a", int, true, -1, -1))?;
    refused("InitParam of an unknown session", extension.init_param(stranger, 0, 0, "@a", int, None, false))?;
    refused("Execute of an unknown session", extension.execute(stranger, 0, 0, &[], &[]))?;
    refused("GetResultColumn of an unknown session", extension.get_result_column(stranger, 0, 0))?;
    refused("GetResults of an unknown session", extension.get_results(stranger, 0))?;
    refused("GetOutputParam of an unknown session", extension.get_output_param(stranger, 0, 0, int))?;
    done("CleanupSession of an unknown session", extension.cleanup_session(stranger, 0))?;

    done("InitSession", extension.init_session(stranger, 3, 4, script, 1, 1))?;
    refused("InitSession of an open session", extension.init_session(stranger, 3, 4, script, 1, 1))?;
    refused("another task of the session", extension.init_column(stranger, 2, 0, "a", int, true, -1, -1))?;
    refused("InitColumn beyond the number of columns", extension.init_column(stranger, 3, 1, "a", int, true, -1, -1))?;
    refused("InitColumn of a type that is never sent", extension.init_column(stranger, 3, 0, "a", time, true, -1, -1))?;
    done("InitColumn", extension.init_column(stranger, 3, 0, "a", int, true, -1, -1))?;
    refused("InitColumn of a column again", extension.init_column(stranger, 3, 0, "a", int, true, -1, -1))?;
    refused("InitParam beyond the number of parameters", extension.init_param(stranger, 3, 1, "@a", int, None, false))?;
    done("InitParam", extension.init_param(stranger, 3, 0, "@a", int, None, false))?;
    done("InitParam again", extension.init_param(stranger, 3, 0, "@a", int, Some(&[1, 0, 0, 0]), false))?;
    refused("GetOutputParam of an input parameter", extension.get_output_param(stranger, 3, 0, int))?;
    refused("GetOutputParam beyond the number of parameters", extension.get_output_param(stranger, 3, 1, int))?;
    refused("GetResultColumn before Execute", extension.get_result_column(stranger, 3, 0))?;
    refused("GetResults before Execute", extension.get_results(stranger, 3))?;
    refused("Execute of an image that does not exist", extension.execute(stranger, 3, 0, &[], &[]))?;
    refused("Execute after a failure", extension.execute(stranger, 3, 0, &[], &[]))?;
    done("CleanupSession after a failure", extension.cleanup_session(stranger, 3))?;
    refused("InitSession with a script that is none", extension.init_session(stranger, 0, 1, "SELECT 1", 0, 0))?;
    if extension.has("SetHostCallbacks") {
        refused("SetHostCallbacks of version 0", extension.set_host_callbacks(0, 32))?;
        refused("SetHostCallbacks of 8 bytes", extension.set_host_callbacks(1, 8))?;
        done("SetHostCallbacks of a later version", extension.set_host_callbacks(7, 512))?;
    }
    done("Cleanup", extension.cleanup())?;
    refused("InitSession after Cleanup", extension.init_session(stranger, 0, 1, script, 0, 0))?;
    done("Init after Cleanup", extension.init("", "", "", ""))
}

fn refused<T>(what: &str, outcome: Outcome<T>) -> Result<(), String> {
    match outcome {
        Err(refused) if refused.code == -1 => Ok(()),
        Err(refused) => Err(format!("contract: {what} returned {}", refused.code)),
        Ok(_) => Err(format!("contract: {what} was not refused")),
    }
}

fn done<T>(what: &str, outcome: Outcome<T>) -> Result<(), String> {
    outcome.map(|_| ()).map_err(|refused| format!("contract: {what} returned {}", refused.code))
}
