//! Job files: as much T-SQL as it takes to try a script.
//!
//! `CREATE TABLE`, `INSERT`, `BULK INSERT` from CSV, `DECLARE`, `CREATE EXTERNAL LANGUAGE` (whose parameters and environment
//! count), `CREATE`, `ALTER` and `DROP EXTERNAL LIBRARY`, `CREATE PROCEDURE` and `EXEC` as `transship ddl` writes them, and
//! `EXEC sp_execute_external_script` over `SELECT columns FROM table`. `GO`, `IF ... CREATE`, `CREATE ROLE`, `GRANT` and `USE` are read and pass.

use crate::tokens::{Parsed, Token, tokenize};
use crate::types::ApiType;

/// A column or parameter as it is declared.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    pub name: String,
    pub ty: ApiType,
    pub is_nullable: bool,
    pub is_output: bool,
    pub default: Option<Value>,
}

/// A value as it is written.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Text(String),
    Variable(String),
}

/// A call: arguments by name, and the columns of WITH RESULT SETS.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcedureCall {
    pub procedure: String,
    pub arguments: Vec<(String, Value)>,
    pub results: Option<Vec<Declared>>,
}

/// A statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    CreateTable {
        name: String,
        columns: Vec<Declared>,
    },
    Insert {
        table: String,
        rows: Vec<Vec<Value>>,
    },
    BulkInsert {
        table: String,
        path: String,
        is_native: bool,
    },
    Declare(Vec<Declared>),
    Language {
        parameters: String,
        environment: String,
    },
    Library {
        name: String,
        content: Option<String>,
    },
    /// Parameters; the call with a query, the call without.
    Procedure {
        name: String,
        parameters: Vec<Declared>,
        tested: Option<String>,
        calls: Vec<ProcedureCall>,
    },
    Exec(ProcedureCall),
    /// Variables to show.
    Select(Vec<String>),
}

/// A query: the columns and the names that they get; none for all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    pub columns: Option<Vec<(String, String)>>,
    pub table: String,
}

/// Reads a job.
pub fn parse(text: &str) -> Parsed<Vec<Statement>> {
    let mut parser = Parser { tokens: tokenize(text)?, next: 0 };
    let mut statements = Vec::new();
    while parser.next < parser.tokens.len() {
        if let Some(statement) = parser.statement()? {
            statements.push(statement);
        }
    }
    Ok(statements)
}

/// Reads `@params`.
pub fn parse_parameters(text: &str) -> Parsed<Vec<Declared>> {
    let mut parser = Parser { tokens: tokenize(text)?, next: 0 };
    parser.list(Parser::parameter)
}

/// Reads the query of `@input_data_1`.
pub fn parse_query(text: &str) -> Parsed<Query> {
    let mut parser = Parser { tokens: tokenize(text)?, next: 0 };
    parser.expect("select")?;
    let columns = if parser.skip_mark('*') {
        None
    } else {
        Some(parser.list(|parser| {
            let column = parser.name()?;
            let is_renamed = parser.skip("as");
            let name = if is_renamed { parser.name()? } else { column.clone() };
            Ok((column, name))
        })?)
    };
    parser.expect("from")?;
    let query = Query { columns, table: parser.qualified_name()? };
    parser.skip_mark(';');
    if parser.next < parser.tokens.len() {
        return Err(format!("a job's query is SELECT columns FROM table, not {text}"));
    }
    Ok(query)
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn wrong<T>(&self, wanted: &str) -> Parsed<T> {
        let near: Vec<String> =
            self.tokens.iter().skip(self.next.saturating_sub(3)).take(6).map(|token| format!("{token:?}")).collect();
        Err(format!("expected {wanted} near {}", near.join(" ")))
    }

    fn skip(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(found, false)) if found.eq_ignore_ascii_case(word));
        self.next += usize::from(found);
        found
    }

    fn skip_all(&mut self, words: &[&str]) -> bool {
        let start = self.next;
        let found = words.iter().all(|word| self.skip(word));
        if !found {
            self.next = start;
        }
        found
    }

    fn skip_mark(&mut self, mark: char) -> bool {
        let found = self.peek() == Some(&Token::Mark(mark));
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, word: &str) -> Parsed<()> {
        if self.skip(word) { Ok(()) } else { self.wrong(word) }
    }

    fn expect_mark(&mut self, mark: char) -> Parsed<()> {
        if self.skip_mark(mark) { Ok(()) } else { self.wrong(&mark.to_string()) }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.peek() {
            Some(Token::Word(name, _)) => {
                let name = name.clone();
                self.next += 1;
                Ok(name)
            }
            _ => self.wrong("a name"),
        }
    }

    /// The last part of a name: schemas do not matter.
    fn qualified_name(&mut self) -> Parsed<String> {
        let mut name = self.name()?;
        while self.skip_mark('.') {
            name = self.name()?;
        }
        Ok(name)
    }

    fn text(&mut self) -> Parsed<String> {
        match self.peek() {
            Some(Token::Text(text)) => {
                let text = text.clone();
                self.next += 1;
                Ok(text)
            }
            _ => self.wrong("a text"),
        }
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Parser) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.skip_mark(',') {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn value(&mut self) -> Parsed<Value> {
        let value = match self.peek() {
            Some(Token::Text(text)) => Value::Text(text.clone()),
            Some(Token::Number(text)) => Value::Text(text.clone()),
            Some(Token::Variable(name)) => Value::Variable(name.clone()),
            Some(Token::Word(word, false)) if word.eq_ignore_ascii_case("null") => Value::Null,
            _ => return self.wrong("a value"),
        };
        self.next += 1;
        Ok(value)
    }

    fn sql_type(&mut self) -> Parsed<ApiType> {
        let name = self.name()?.to_lowercase();
        let mut arguments = Vec::new();
        if self.skip_mark('(') {
            arguments = self.list(|parser| match parser.peek().cloned() {
                Some(Token::Number(text) | Token::Word(text, false)) => {
                    parser.next += 1;
                    Ok(text.to_lowercase())
                }
                _ => parser.wrong("a length"),
            })?;
            self.expect_mark(')')?;
        }
        ApiType::parse(&name, &arguments)
    }

    fn column(&mut self) -> Parsed<Declared> {
        let (name, ty) = (self.name()?, self.sql_type()?);
        let is_nullable = !self.skip_all(&["not", "null"]);
        self.skip("null");
        Ok(Declared { name, ty, is_nullable, is_output: false, default: None })
    }

    fn parameter(&mut self) -> Parsed<Declared> {
        let Some(Token::Variable(name)) = self.peek().cloned() else { return self.wrong("a parameter") };
        self.next += 1;
        self.skip("as");
        let ty = self.sql_type()?;
        let default = if self.skip_mark('=') { Some(self.value()?) } else { None };
        let is_output = self.skip("output") || self.skip("out");
        Ok(Declared { name, ty, is_nullable: true, is_output, default })
    }

    fn statement(&mut self) -> Parsed<Option<Statement>> {
        if self.skip_mark(';') || self.skip("go") {
            return Ok(None);
        }
        if self.skip("use") {
            self.name()?;
            return Ok(None);
        }
        if self.skip("if") {
            // Whether something exists already makes no difference here.
            while self.peek().is_some()
                && !matches!(self.peek(), Some(Token::Word(word, false)) if word.eq_ignore_ascii_case("create"))
            {
                self.next += 1;
            }
        }
        if self.skip_all(&["create", "role"]) {
            self.name()?;
            return Ok(None);
        }
        if self.skip("grant") {
            while self.peek().is_some()
                && !matches!(self.peek(), Some(Token::Word(word, false)) if word.eq_ignore_ascii_case("go"))
                && !self.skip_mark(';')
            {
                self.next += 1;
            }
            return Ok(None);
        }
        let statement = if self.skip_all(&["create", "table"]) {
            let name = self.qualified_name()?;
            self.expect_mark('(')?;
            let columns = self.list(Parser::column)?;
            self.expect_mark(')')?;
            Statement::CreateTable { name, columns }
        } else if self.skip("insert") {
            self.skip("into");
            let table = self.qualified_name()?;
            self.expect("values")?;
            let rows = self.list(|parser| {
                parser.expect_mark('(')?;
                let values = parser.list(Parser::value)?;
                parser.expect_mark(')')?;
                Ok(values)
            })?;
            Statement::Insert { table, rows }
        } else if self.skip_all(&["bulk", "insert"]) {
            let table = self.qualified_name()?;
            self.expect("from")?;
            let path = self.text()?;
            let mut is_native = false;
            if self.skip("with") {
                self.expect_mark('(')?;
                self.expect("datafiletype")?;
                self.expect_mark('=')?;
                is_native = self.text()? == "native";
                self.expect_mark(')')?;
            }
            Statement::BulkInsert { table, path, is_native }
        } else if self.skip("declare") {
            Statement::Declare(self.list(Parser::parameter)?)
        } else if self.skip_all(&["create", "external", "language"])
            || self.skip_all(&["alter", "external", "language"])
        {
            self.name()?;
            let options = self.options()?;
            let option = |name: &str| options.iter().find(|(found, _)| found == name).map(|(_, text)| text.clone());
            Statement::Language {
                parameters: option("parameters").unwrap_or_default(),
                environment: option("environment_variables").unwrap_or_default(),
            }
        } else if self.skip_all(&["create", "external", "library"]) || self.skip_all(&["alter", "external", "library"])
        {
            let name = self.name()?;
            let options = self.options()?;
            let content = options.iter().find(|(found, _)| found == "content").map(|(_, text)| text.clone());
            Statement::Library { name, content: Some(content.ok_or("a library needs CONTENT")?) }
        } else if self.skip_all(&["drop", "external", "library"]) {
            Statement::Library { name: self.name()?, content: None }
        } else if self.skip_all(&["create", "or", "alter", "procedure"]) || self.skip_all(&["create", "procedure"]) {
            self.procedure()?
        } else if self.skip("exec") || self.skip("execute") {
            Statement::Exec(self.call()?)
        } else if self.skip("select") {
            let variables = self.list(|parser| match parser.value()? {
                Value::Variable(name) => Ok(name),
                _ => parser.wrong("a variable"),
            })?;
            Statement::Select(variables)
        } else {
            return self.wrong("a statement");
        };
        Ok(Some(statement))
    }

    /// `FROM (...)`, `SET (...)` and `WITH (...)`: names and texts.
    fn options(&mut self) -> Parsed<Vec<(String, String)>> {
        let mut options = Vec::new();
        while self.skip("from") || self.skip("set") || self.skip("with") {
            self.expect_mark('(')?;
            options.extend(self.list(|parser| {
                let name = parser.name()?.to_lowercase();
                parser.expect_mark('=')?;
                let text = if let Some(Token::Word(word, _)) = parser.peek().cloned() {
                    parser.next += 1;
                    word
                } else {
                    parser.text()?
                };
                Ok((name, text))
            })?);
            self.expect_mark(')')?;
        }
        Ok(options)
    }

    /// `@query IS NOT NULL` chooses between two calls, as `transship ddl` writes it.
    fn procedure(&mut self) -> Parsed<Statement> {
        let name = self.qualified_name()?;
        let parameters =
            if matches!(self.peek(), Some(Token::Variable(_))) { self.list(Parser::parameter)? } else { Vec::new() };
        self.expect("as")?;
        self.expect("begin")?;
        let (mut tested, mut calls) = (None, Vec::new());
        while !self.skip("end") {
            if self.skip("if") {
                let Value::Variable(name) = self.value()? else { return self.wrong("a variable") };
                if !self.skip_all(&["is", "not", "null"]) {
                    return self.wrong("IS NOT NULL");
                }
                tested = Some(name);
            } else if !self.skip_mark(';') && !self.skip("else") {
                self.expect("exec")?;
                calls.push(self.call()?);
            }
        }
        Ok(Statement::Procedure { name, parameters, tested, calls })
    }

    fn call(&mut self) -> Parsed<ProcedureCall> {
        let procedure = self.qualified_name()?;
        let mut arguments = Vec::new();
        if matches!(self.peek(), Some(Token::Variable(_))) {
            arguments = self.list(|parser| {
                let Some(Token::Variable(name)) = parser.peek().cloned() else { return parser.wrong("an argument") };
                parser.next += 1;
                parser.expect_mark('=')?;
                let value = parser.value()?;
                let _ = parser.skip("output") || parser.skip("out");
                Ok((name, value))
            })?;
        }
        let mut results = None;
        if self.skip_all(&["with", "result", "sets"]) {
            self.expect_mark('(')?;
            self.expect_mark('(')?;
            results = Some(self.list(Parser::column)?);
            self.expect_mark(')')?;
            self.expect_mark(')')?;
        }
        Ok(ProcedureCall { procedure, arguments, results })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let job = "-- A comment; with marks ('\nCREATE TABLE dbo.t ([a b] int NOT NULL, c nvarchar(max));\nGO\n\
                   INSERT INTO t VALUES (-1, N'it''s'), (2.5e-3, NULL);\n\
                   EXEC sp_execute_external_script @language = N'Container', @script = N'image = \"x\"\n', @n = @n OUTPUT\n\
                   WITH RESULT SETS ((y float NULL, z decimal(9, 2)));\nSELECT @n;";
        let statements = parse(job).unwrap();
        assert_eq!(statements.len(), 4);
        let Statement::Insert { rows, .. } = &statements[1] else { panic!("{statements:?}") };
        assert_eq!(rows[0], [Value::Text("-1".into()), Value::Text("it's".into())]);
        assert_eq!(rows[1], [Value::Text("2.5e-3".into()), Value::Null]);
        let Statement::Exec(call) = &statements[2] else { panic!("{statements:?}") };
        assert_eq!(call.arguments[1], ("script".to_string(), Value::Text("image = \"x\"\n".into())));
        assert_eq!(call.results.as_ref().unwrap().len(), 2);
    }

    #[test]
    fn queries_and_parameters_are_read() {
        let query = parse_query("SELECT [a b] AS x, c FROM dbo.[My t]").unwrap();
        assert_eq!(query.columns.unwrap(), [("a b".to_string(), "x".to_string()), ("c".to_string(), "c".to_string())]);
        assert_eq!((query.table.as_str(), parse_query("select * from t;").unwrap().columns), ("My t", None));
        assert!(parse_query("SELECT a FROM t WHERE a > 1").is_err());
        let parameters = parse_parameters("@k float, @Name nvarchar(10) OUTPUT").unwrap();
        assert_eq!(
            (parameters[0].is_output, parameters[1].is_output, parameters[1].name.as_str()),
            (false, true, "Name")
        );
    }
}
