//! Tables in the API's own layout, and CSV.

use std::fs;
use std::path::Path;

use crate::types::ApiType;

/// A column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub ty: ApiType,
    pub is_nullable: bool,
    /// Values, back to back; a NULL of a type of variable length has no bytes.
    pub data: Vec<u8>,
    /// Bytes of each value, or -1. None where every value has the type's own length.
    pub lengths: Option<Vec<i32>>,
}

/// A table.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub columns: Vec<Column>,
    pub rows: usize,
}

impl Column {
    pub fn new(name: &str, ty: ApiType, is_nullable: bool) -> Column {
        let lengths = (is_nullable || ty.element_bytes().is_none()).then(Vec::new);
        Column { name: name.to_string(), ty, is_nullable, data: Vec::new(), lengths }
    }

    /// Adds a value; the rows' number is the table's business.
    pub fn push(&mut self, text: Option<&str>) -> Result<(), String> {
        let within = |fact: String| format!("column \"{}\": {fact}", self.name);
        let Some(text) = text else {
            if !self.is_nullable {
                return Err(within("NULL in a column that is NOT NULL".to_string()));
            }
            // What a NULL's bytes are is nobody's business, so they are what hurts most if read.
            self.data.extend(vec![0xff; self.ty.element_bytes().unwrap_or(0)]);
            self.lengths.get_or_insert_default().push(-1);
            return Ok(());
        };
        let bytes = self.ty.encode(text).map_err(within)?;
        if let Some(lengths) = &mut self.lengths {
            lengths.push(bytes.len() as i32);
        }
        self.data.extend(bytes);
        Ok(())
    }

    /// Where the bytes of some rows lie.
    fn byte_range(&self, rows: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        match (self.ty.element_bytes(), &self.lengths) {
            (Some(element), _) => rows.start * element..rows.end * element,
            (None, Some(lengths)) => {
                let bytes = |lengths: &[i32]| lengths.iter().map(|length| (*length).max(0) as usize).sum::<usize>();
                let start = bytes(&lengths[..rows.start]);
                start..start + bytes(&lengths[rows.clone()])
            }
            (None, None) => 0..0,
        }
    }

    /// The bytes and lengths of some rows.
    pub fn slice(&self, rows: std::ops::Range<usize>) -> (&[u8], Option<&[i32]>) {
        (&self.data[self.byte_range(&rows)], self.lengths.as_ref().map(|lengths| &lengths[rows.clone()]))
    }

    /// Some rows, in any order.
    fn pick(&self, rows: &[usize]) -> Column {
        let mut picked = Column::new(&self.name, self.ty, self.is_nullable);
        for row in rows {
            let (bytes, lengths) = self.slice(*row..*row + 1);
            picked.data.extend_from_slice(bytes);
            if let (Some(picked), Some(lengths)) = (&mut picked.lengths, lengths) {
                picked.extend_from_slice(lengths);
            }
        }
        picked
    }

    /// A row's text; none if it is NULL.
    pub fn text(&self, row: usize) -> Option<String> {
        let (bytes, lengths) = self.slice(row..row + 1);
        (lengths.is_none_or(|lengths| lengths[0] >= 0)).then(|| self.ty.decode(bytes))
    }
}

impl Table {
    /// Adds a row.
    pub fn push(&mut self, values: &[Option<String>]) -> Result<(), String> {
        if values.len() != self.columns.len() {
            return Err(format!("{} values for {} columns", values.len(), self.columns.len()));
        }
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.push(value.as_deref())?;
        }
        self.rows += 1;
        Ok(())
    }

    /// Some rows, in any order.
    pub fn pick(&self, rows: &[usize]) -> Table {
        Table { columns: self.columns.iter().map(|column| column.pick(rows)).collect(), rows: rows.len() }
    }

    /// The rows by the given columns: numbers by value, the rest by text, NULL first.
    pub fn sort(&self, by: &[usize]) -> Table {
        let part = |row: usize, column: &usize| {
            let text = self.columns[*column].text(row);
            (text.as_ref().and_then(|text| text.parse::<f64>().ok()).filter(|number| !number.is_nan()), text)
        };
        let mut keys: Vec<_> =
            (0..self.rows).map(|row| (by.iter().map(|column| part(row, column)).collect::<Vec<_>>(), row)).collect();
        keys.sort_by(|one, other| one.partial_cmp(other).expect("NaN was left out"));
        self.pick(&keys.into_iter().map(|(_, row)| row).collect::<Vec<_>>())
    }

    /// Adds the rows of a table of the same columns.
    pub fn append(&mut self, other: &Table) {
        for (column, more) in self.columns.iter_mut().zip(&other.columns) {
            column.data.extend_from_slice(&more.data);
            column.lengths.get_or_insert_default().extend(more.lengths.iter().flatten());
        }
        self.rows += other.rows;
    }

    /// Adds the rows of a CSV file with a header.
    pub fn read_csv(&mut self, text: &str) -> Result<(), String> {
        let mut records = parse_csv(text).into_iter();
        let header = records.next().ok_or("the file is empty")?;
        let mut places = Vec::new();
        for column in &self.columns {
            let place = header.iter().position(|name| name.as_deref().unwrap_or("") == column.name);
            places.push(place.ok_or_else(|| format!("the file has no column \"{}\"", column.name))?);
        }
        for (number, record) in records.enumerate() {
            let values: Vec<Option<String>> =
                places.iter().map(|place| record.get(*place).cloned().flatten()).collect();
            self.push(&values).map_err(|fact| format!("line {}: {fact}", number + 2))?;
        }
        Ok(())
    }

    /// Adds one file per column, of the values as the API passes them: `<folder>/<column>.bin`. None are NULL.
    pub fn read_native(&mut self, folder: &Path) -> Result<(), String> {
        for column in &mut self.columns {
            let path = folder.join(format!("{}.bin", column.name));
            let element = column.ty.element_bytes().ok_or("native files have fixed-size values only")?;
            column.data.extend(fs::read(&path).map_err(|cause| format!("{}: {cause}", path.display()))?);
            let rows = column.data.len() / element;
            if let Some(lengths) = &mut column.lengths {
                lengths.resize(rows, element as i32);
            }
            self.rows = rows;
        }
        let is_even =
            |column: &Column| column.ty.element_bytes().is_some_and(|element| column.data.len() == self.rows * element);
        if self.columns.iter().all(is_even) { Ok(()) } else { Err("the files differ in length".to_string()) }
    }

    /// CSV with a header. A NULL is an empty field, an empty text a quoted one.
    pub fn to_csv(&self) -> String {
        let names = self.columns.iter().map(|column| Some(column.name.clone()));
        let mut text = csv_line(names);
        for row in 0..self.rows {
            text.push_str(&csv_line(self.columns.iter().map(|column| column.text(row))));
        }
        text
    }
}

fn csv_line(fields: impl Iterator<Item = Option<String>>) -> String {
    let quoted = |field: Option<String>| match field {
        None => String::new(),
        Some(text) if text.is_empty() || text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Some(text) => text,
    };
    let fields: Vec<String> = fields.map(quoted).collect();
    fields.join(",") + "\n"
}

/// RFC 4180, and an empty field that is not quoted is none: libraries do not tell the two apart.
fn parse_csv(text: &str) -> Vec<Vec<Option<String>>> {
    let (mut records, mut record) = (Vec::new(), Vec::new());
    let mut rest = text.chars().peekable();
    while rest.peek().is_some() {
        let mut field = String::new();
        let is_quoted = rest.next_if_eq(&'"').is_some();
        if is_quoted {
            while let Some(c) = rest.next() {
                if c != '"' {
                    field.push(c);
                } else if rest.next_if_eq(&'"').is_some() {
                    field.push('"');
                } else {
                    break;
                }
            }
        }
        while let Some(c) = rest.next_if(|c| !matches!(c, ',' | '\n' | '\r')) {
            field.push(c);
        }
        record.push((is_quoted || !field.is_empty()).then_some(field));
        let separator = rest.next();
        if separator == Some('\r') {
            rest.next_if_eq(&'\n');
        }
        if separator != Some(',') {
            records.push(std::mem::take(&mut record));
        } else if rest.peek().is_none() {
            record.push(None);
            records.push(std::mem::take(&mut record));
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_value_and_by_text() {
        let sorted = |sql: &str, values: &[&str]| {
            let ty = ApiType::parse(sql, &["9".to_string()]).unwrap();
            let mut table = Table { columns: vec![Column::new("a", ty, true)], rows: 0 };
            table.push(&[Some(values[0].to_string())]).unwrap();
            table.push(&[None]).unwrap();
            values[1..].iter().for_each(|value| table.push(&[Some(value.to_string())]).unwrap());
            table.sort(&[0]).to_csv()
        };
        assert_eq!(sorted("int", &["10", "9", "-1"]), "a\n\n-1\n9\n10\n");
        assert_eq!(sorted("nvarchar", &["b", "NaN", "a"]), "a\n\nNaN\na\nb\n");
    }

    #[test]
    fn csv_tells_null_from_empty() {
        let text = "a,b\n1,\"\"\n2,\n3,\"x, \"\"y\"\"\nz\"\n";
        let mut table = Table::default();
        table.columns.push(Column::new("b", ApiType::parse("nvarchar", &["max".to_string()]).unwrap(), true));
        table.columns.push(Column::new("a", ApiType::parse("int", &[]).unwrap(), false));
        table.read_csv(text).unwrap();
        assert_eq!(table.to_csv(), "b,a\n\"\",1\n,2\n\"x, \"\"y\"\"\nz\",3\n");
        assert_eq!(table.pick(&[2, 0]).to_csv(), "b,a\n\"x, \"\"y\"\"\nz\",3\n\"\",1\n");
        assert_eq!(parse_csv("a,\r\n,"), [[Some("a".to_string()), None], [None, None]]);
    }
}
