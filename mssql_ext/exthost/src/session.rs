//! One session, as ExtHost drives it: describe, execute chunk by chunk, read and check what comes back, clean up.

use std::time::{Duration, Instant};

use crate::abi::{Guid, SQL_NULL_DATA};
use crate::buffers::{Buffer, Kind};
use crate::extension::{DescribedResult, Extension, RawResults, take_events};
use crate::readings::Readings;
use crate::table::{Column, Table};
use crate::types::{self, ApiType};

/// A parameter of `@params`.
#[derive(Debug, Clone)]
pub struct Parameter {
    pub name: String,
    pub ty: ApiType,
    pub value: Option<Vec<u8>>,
    pub is_output: bool,
}

/// What a session is to do.
#[derive(Debug, Clone)]
pub struct Work {
    pub script: String,
    pub input: Table,
    pub parameters: Vec<Parameter>,
    /// Numbers of the columns to partition by, and to order by.
    pub partition_by: Vec<usize>,
    pub order_by: Vec<usize>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct JobOutcome {
    pub results: Table,
    /// Values of the OUTPUT parameters, by number.
    pub outputs: Vec<(usize, Option<Vec<u8>>)>,
    pub telemetry: Vec<(String, i64)>,
    pub events: Vec<String>,
    /// Time that the host spent on its own buffers, and in the extension.
    pub host: Duration,
    pub extension: Duration,
    pub cleanup: Duration,
}

/// How the host works.
#[derive(Debug, Clone)]
pub struct Host {
    pub readings: Readings,
    pub kind: Kind,
    /// Whether results are kept as a table; else they are only checked.
    pub keeps_results: bool,
}

/// A run of rows that one Execute gets.
type Chunk = std::ops::Range<usize>;

impl Host {
    /// Runs a session from InitSession to CleanupSession. An error is what the server would report.
    pub fn run(
        &self,
        extension: &Extension,
        id: Guid,
        task: u16,
        tasks: u16,
        work: &Work,
    ) -> Result<JobOutcome, String> {
        let outcome = self.run_uncleaned(extension, id, task, tasks, work);
        if outcome.is_err() && !self.readings.cleans_after_error {
            return outcome;
        }
        let start = Instant::now();
        extension.cleanup_session(id, task).map_err(|refused| refused.to_string())?;
        outcome.map(|answer| JobOutcome { cleanup: start.elapsed(), ..answer })
    }

    fn run_uncleaned(
        &self,
        extension: &Extension,
        id: Guid,
        task: u16,
        tasks: u16,
        work: &Work,
    ) -> Result<JobOutcome, String> {
        let said = |refused: crate::extension::Refused| refused.to_string();
        let columns = &work.input.columns;
        extension.init_session(id, task, tasks, &work.script, columns.len(), work.parameters.len()).map_err(said)?;
        for (number, column) in columns.iter().enumerate() {
            let place =
                |numbers: &[usize]| numbers.iter().position(|found| *found == number).map_or(-1, |place| place as i16);
            let ty = self.announced(column.ty);
            let (partition, order) = (place(&work.partition_by), place(&work.order_by));
            extension
                .init_column(id, task, number, &column.name, ty, column.is_nullable, partition, order)
                .map_err(said)?;
        }
        for (number, parameter) in work.parameters.iter().enumerate() {
            let (name, ty, value) =
                (format!("@{}", parameter.name), self.announced_parameter(parameter.ty), parameter.value.as_deref());
            extension.init_param(id, task, number, &name, ty, value, parameter.is_output).map_err(said)?;
        }
        let mut answer = JobOutcome::default();
        let mut schema: Option<Vec<DescribedResult>> = None;
        for chunk in self.chunks(work) {
            self.execute(extension, id, task, work, chunk, &mut schema, &mut answer)?;
        }
        for (number, parameter) in work.parameters.iter().enumerate().filter(|(_, parameter)| parameter.is_output) {
            let value = extension.get_output_param(id, task, number, parameter.ty).map_err(said)?;
            let value = value.map_err(|fact| violation(&format!("OUTPUT parameter @{} has {fact}", parameter.name)))?;
            if let Some(fault) = value.as_ref().and_then(|bytes| parameter.ty.find_fault(bytes)) {
                return Err(violation(&format!("OUTPUT parameter @{} is {fault}", parameter.name)));
            }
            answer.outputs.push((number, value));
        }
        if extension.has("GetTelemetryResults") {
            answer.telemetry = extension.get_telemetry(id, task).map_err(said)?;
        }
        answer.events = take_events();
        Ok(answer)
    }

    /// A type as this host announces it.
    fn announced(&self, ty: ApiType) -> ApiType {
        let size = match (self.readings.sizes_are_exact, ty.code) {
            (true, _) => ty.size,
            (false, types::CHAR | types::WCHAR | types::BINARY) if ty.size > 8000 => 65535,
            (false, types::DATE) => 10,
            (false, types::TIMESTAMP) => 19 + u64::from(ty.digits > 0) + ty.digits as u64,
            (false, _) => ty.size,
        };
        ApiType { size, ..ty }
    }

    /// A parameter's type as this host announces it: the size of wide text in bytes, or in characters.
    fn announced_parameter(&self, ty: ApiType) -> ApiType {
        let announced = self.announced(ty);
        let counts_characters = !self.readings.sizes_are_exact && ty.code == types::WCHAR && ty.size <= 8000;
        if counts_characters { ApiType { size: ty.size / 2, ..announced } } else { announced }
    }

    /// Which rows each Execute gets.
    fn chunks(&self, work: &Work) -> Vec<Chunk> {
        let rows = work.input.rows;
        let rows_per_read = work
            .parameters
            .iter()
            .find(|parameter| parameter.name == "r_rowsPerRead")
            .and_then(|parameter| Some(i32::from_le_bytes(*parameter.value.as_ref()?.first_chunk()?)))
            .and_then(|rows| usize::try_from(rows).ok())
            .filter(|rows| *rows > 0);
        let mut chunks = Vec::new();
        if !work.partition_by.is_empty() {
            let key = |row: usize| -> Vec<_> {
                work.partition_by.iter().map(|column| work.input.columns[*column].text(row)).collect()
            };
            let mut first = 0;
            for row in 1..=rows {
                if row == rows || key(row) != key(first) {
                    chunks.push(first..row);
                    first = row;
                }
            }
        } else if let Some(step) = rows_per_read {
            chunks.extend((0..rows).step_by(step).map(|first| first..rows.min(first + step)));
            if !self.readings.ends_with_rows {
                chunks.push(rows..rows);
            }
        }
        if chunks.is_empty() {
            chunks.push(0..rows);
        }
        chunks
    }

    #[allow(clippy::too_many_arguments, reason = "what one chunk needs to know")]
    fn execute(
        &self,
        extension: &Extension,
        id: Guid,
        task: u16,
        work: &Work,
        chunk: Chunk,
        schema: &mut Option<Vec<DescribedResult>>,
        answer: &mut JobOutcome,
    ) -> Result<(), String> {
        let said = |refused: crate::extension::Refused| refused.to_string();
        let start = Instant::now();
        let mut buffers = Vec::new();
        let (mut data, mut indicators) = (Vec::new(), Vec::new());
        if !chunk.is_empty() {
            for column in &work.input.columns {
                data.push(self.column_data(column, chunk.clone(), &mut buffers));
                let lengths = column.slice(chunk.clone()).1;
                indicators.push(lengths.map_or(0, |lengths| {
                    let content: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
                    buffers.push(Buffer::new(self.kind, &content));
                    buffers[buffers.len() - 1].as_ptr() as usize
                }));
            }
        }
        answer.host += start.elapsed();
        let start = Instant::now();
        let count = extension.execute(id, task, chunk.len() as u64, &data, &indicators).map_err(said)?;
        answer.extension += start.elapsed();
        if !self.readings.buffers_live_on {
            buffers.iter_mut().for_each(Buffer::poison);
        }
        let described = match schema {
            Some(schema) if self.readings.describes_once => schema.clone(),
            _ => {
                let mut described = Vec::new();
                for number in 0..count {
                    let column = extension.get_result_column(id, task, number).map_err(said)?;
                    self.check_column(usize::from(number), &column)?;
                    described.push(column);
                }
                described
            }
        };
        if let Some(before) = schema
            && (*before != described || before.len() != usize::from(count))
        {
            return Err(violation("the result schema changed between two calls of Execute"));
        }
        if schema.is_none() {
            answer.results.columns = described.iter().map(|column| Column::new("", column.ty, true)).collect();
            *schema = Some(described.clone());
        }
        if count == 0 && self.readings.skips_empty_results {
            return Ok(());
        }
        let results = extension.get_results(id, task).map_err(said)?;
        if extension.get_results(id, task).map_err(said)? != results {
            return Err(violation("GetResults gave something else the second time"));
        }
        let start = Instant::now();
        buffers.iter_mut().for_each(Buffer::poison);
        self.read_results(&described, results, &mut answer.results)?;
        answer.host += start.elapsed();
        Ok(())
    }

    /// A copy of a column's values for the extension.
    fn column_data(&self, column: &Column, rows: Chunk, buffers: &mut Vec<Buffer>) -> usize {
        buffers.push(if column.ty.code == types::CHAR && !self.readings.sends_utf8 {
            Buffer::new(self.kind, &to_code_page(column, rows))
        } else {
            Buffer::new(self.kind, column.slice(rows).0)
        });
        buffers[buffers.len() - 1].as_ptr() as usize
    }

    fn check_column(&self, number: usize, column: &DescribedResult) -> Result<(), String> {
        let ty = column.ty;
        let wrong = |fact: String| Err(violation(&format!("result column {number} {fact}")));
        if !matches!(column.nullable, 0 | 1) {
            return wrong(format!("has a nullability of {}", column.nullable));
        }
        match ty.code {
            types::NUMERIC if !(1..=38).contains(&ty.size) || ty.digits < 0 || ty.digits as u64 > ty.size => {
                wrong(format!("is a decimal({}, {})", ty.size, ty.digits))
            }
            types::NUMERIC => Ok(()),
            types::CHAR | types::WCHAR | types::BINARY if ty.size == 0 || ty.size > types::LOB => {
                wrong(format!("has a size of {}", ty.size))
            }
            types::WCHAR if ty.size % 2 == 1 => wrong(format!("of two bytes per character has a size of {}", ty.size)),
            types::TIMESTAMP if !(0..=7).contains(&ty.digits) => wrong(format!("has {} digits of a second", ty.digits)),
            types::GUID if !self.readings.takes_guids => {
                wrong("is a SQL_C_GUID, which this host does not take".to_string())
            }
            types::TIME | types::TIMESTAMPOFFSET => wrong(format!("has the type code {}", ty.code)),
            _ => match ty.element_bytes() {
                Some(element) if ty.size != element as u64 => {
                    wrong(format!("has a size of {} instead of {element}", ty.size))
                }
                None if !matches!(ty.code, types::CHAR | types::WCHAR | types::BINARY) => {
                    wrong(format!("has the type code {}", ty.code))
                }
                _ if ty.digits != 0 && ty.code != types::TIMESTAMP => wrong(format!("has {} digits", ty.digits)),
                _ => Ok(()),
            },
        }
    }

    /// Reads results and checks that they are what their description says.
    fn read_results(&self, schema: &[DescribedResult], results: RawResults, table: &mut Table) -> Result<(), String> {
        let rows = usize::try_from(results.rows).ok().filter(|rows| *rows < usize::MAX / 64);
        let rows = rows.ok_or_else(|| violation("the number of rows was not written"))?;
        if !schema.is_empty() && results.data.is_null() {
            return Err(violation("the array of columns is NULL"));
        }
        for (number, column) in schema.iter().enumerate() {
            let wrong =
                |row: usize, fact: &str| Err(violation(&format!("result column {number}, row {}: {fact}", row + 1)));
            // SAFETY: the extension gave arrays of as many pointers as columns, of as many values as rows.
            let (data, lengths) = unsafe {
                let data = *results.data.add(number);
                let lengths =
                    if results.indicators.is_null() { std::ptr::null() } else { *results.indicators.add(number) };
                (data, (!lengths.is_null() && rows > 0).then(|| std::slice::from_raw_parts(lengths, rows)))
            };
            let element = column.ty.element_bytes();
            if rows > 0 && data.is_null() {
                return wrong(0, "there are no values");
            }
            if rows > 0 && lengths.is_none() && (element.is_none() || column.nullable == 1) {
                return wrong(0, "there are no lengths");
            }
            if element.is_some() && !(data as usize).is_multiple_of(column.ty.alignment()) {
                return wrong(0, "the values are not aligned");
            }
            let target = &mut table.columns[number];
            let mut offset = 0;
            for row in 0..rows {
                let length = lengths.map_or(0, |lengths| lengths[row]);
                let is_null = length == SQL_NULL_DATA;
                if length < SQL_NULL_DATA {
                    return wrong(row, &format!("a length of {length}"));
                }
                if is_null && column.nullable == 0 {
                    return wrong(row, "NULL in a column that is NOT NULL");
                }
                let bytes = element.unwrap_or(length.max(0) as usize);
                if element.is_none() && bytes as u64 > column.ty.size {
                    return wrong(row, &format!("{bytes} bytes in a column of {}", column.ty.size));
                }
                // SAFETY: as above; a NULL of a type of variable length has no bytes.
                let value = unsafe { std::slice::from_raw_parts(data.add(offset), bytes) };
                offset += bytes;
                if !is_null && let Some(fault) = column.ty.find_fault(value) {
                    return wrong(row, &fault);
                }
                if self.keeps_results {
                    target.data.extend_from_slice(value);
                    target.lengths.get_or_insert_default().push(if is_null { -1 } else { bytes as i32 });
                }
            }
        }
        table.rows += rows;
        Ok(())
    }
}

fn violation(fact: &str) -> String {
    format!("contract: {fact}")
}

/// A column's text in code page 1252, as far as that is Latin-1. A character of two bytes in UTF-8 has one here; blanks
/// behind the text make up for it, so that the lengths hold.
fn to_code_page(column: &Column, rows: Chunk) -> Vec<u8> {
    let mut data = Vec::new();
    for row in rows {
        let text = column.text(row).unwrap_or_default();
        let mut bytes: Vec<u8> = text.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect();
        bytes.resize(text.len(), b' ');
        data.extend(bytes);
    }
    data
}
