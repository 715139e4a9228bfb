//! Fields of a line of a CSV file: numbers in their range, or an error with their name.

/// Tokens of one request: more than any model takes.
pub(super) const MOST_TOKENS: u32 = 10_000_000;

/// The fields of a line; none of the formats quotes.
pub(super) struct Row<'a> {
    names: &'a [String],
    values: Vec<&'a str>,
}

impl<'a> Row<'a> {
    /// Of a line with as many fields as the header has.
    pub(super) fn new(names: &'a [String], line: &'a str) -> Result<Self, String> {
        let values: Vec<&str> = line.split(',').map(str::trim).collect();
        if values.len() == names.len() {
            return Ok(Self { names, values });
        }
        Err(format!("{} fields, and the header has {}: {}", values.len(), names.len(), names.join(",")))
    }

    /// The text of a field.
    pub(super) fn text(&self, column: usize) -> &'a str {
        self.values.get(column).copied().unwrap_or_default()
    }

    /// What is wrong with a field.
    pub(super) fn wrong(&self, column: usize, allowed: &str) -> String {
        let name = self.names.get(column).map_or("?", String::as_str);
        format!("{name} {:?} is out of range: must be {allowed}", self.text(column))
    }

    /// Tokens; a request without any has one, since something was computed.
    pub(super) fn tokens(&self, column: usize) -> Result<u32, String> {
        let tokens = self.text(column).parse::<u32>().ok().filter(|tokens| *tokens <= MOST_TOKENS);
        let tokens =
            tokens.ok_or_else(|| self.wrong(column, &format!("a whole number from 0 to {MOST_TOKENS}")))?;
        Ok(tokens.max(1))
    }

    /// A number that is finite and at least 0.
    pub(super) fn number(&self, column: usize) -> Result<f64, String> {
        let number = self.text(column).parse::<f64>().ok().filter(|number| (0.0..=1e12).contains(number));
        number.ok_or_else(|| self.wrong(column, "a number from 0 to 1e12"))
    }
}

/// The names of a header.
pub(super) fn names(header: &str) -> Vec<String> {
    header.split(',').map(|name| name.trim().to_owned()).collect()
}
