//! The tokens of T-SQL, as far as job files need them.

/// Result of reading a job; the error says what was expected.
pub type Parsed<T> = Result<T, String>;

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    /// A name or a keyword, and whether it was quoted.
    Word(String, bool),
    /// Without its at sign.
    Variable(String),
    /// Without its quotation marks.
    Text(String),
    /// As it is written.
    Number(String),
    /// Any other character.
    Mark(char),
}

/// The tokens of a text; comments are left out.
pub fn tokenize(text: &str) -> Parsed<Vec<Token>> {
    let characters: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '#' | '$' | '@');
    while at < characters.len() {
        let c = characters[at];
        let next = characters.get(at + 1).copied();
        if c.is_whitespace() {
            at += 1;
        } else if c == '-' && next == Some('-') {
            while at < characters.len() && characters[at] != '\n' {
                at += 1;
            }
        } else if c == '\'' || (matches!(c, 'N' | 'n') && next == Some('\'')) || c == '[' || c == '"' {
            at += usize::from(matches!(c, 'N' | 'n'));
            let close = if characters[at] == '[' { ']' } else { characters[at] };
            let (content, end) = quoted(&characters, at + 1, close)?;
            tokens.push(if close == '\'' { Token::Text(content) } else { Token::Word(content, true) });
            at = end;
        } else if c == '@' || c.is_alphabetic() || c == '_' || c == '#' {
            let end = (at + 1..characters.len()).find(|i| !is_word(characters[*i])).unwrap_or(characters.len());
            let word: String = characters[at..end].iter().collect();
            tokens.push(match word.strip_prefix('@') {
                Some(name) => Token::Variable(name.to_string()),
                None => Token::Word(word, false),
            });
            at = end;
        } else if c.is_ascii_digit()
            || (matches!(c, '-' | '+' | '.') && next.is_some_and(|next| next.is_ascii_digit() || next == '.'))
        {
            let belongs = |i: &usize| {
                let c = characters[*i];
                c.is_alphanumeric() || c == '.' || (matches!(c, '-' | '+') && matches!(characters[i - 1], 'e' | 'E'))
            };
            let end = (at + 1..characters.len()).find(|i| !belongs(i)).unwrap_or(characters.len());
            tokens.push(Token::Number(characters[at..end].iter().collect()));
            at = end;
        } else {
            tokens.push(Token::Mark(c));
            at += 1;
        }
    }
    Ok(tokens)
}

fn quoted(characters: &[char], start: usize, close: char) -> Parsed<(String, usize)> {
    let mut content = String::new();
    let mut at = start;
    while at < characters.len() {
        if characters[at] != close {
            content.push(characters[at]);
            at += 1;
        } else if characters.get(at + 1) == Some(&close) {
            content.push(close);
            at += 2;
        } else {
            return Ok((content, at + 1));
        }
    }
    Err(format!("a quotation without its end: {}", content.chars().take(40).collect::<String>()))
}
