//! Reads the fields of a CSV line: a number in its range, or an error with the field's name.

/// The most tokens of a request: more than any model takes.
pub(super) const MAX_TOKENS: u32 = 10_000_000;

/// The fields of a line. None of the formats has quotes, so that splitting at commas is enough.
pub(super) struct CsvRow<'a> {
    names: &'a [String],
    values: Vec<&'a str>,
}

impl<'a> CsvRow<'a> {
    /// Splits a line, which must have as many fields as the header.
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

    /// The error of a field that is not `allowed`.
    pub(super) fn out_of_range(&self, column: usize, allowed: &str) -> String {
        let name = self.names.get(column).map_or("?", String::as_str);
        format!("{name} {:?} is out of range: must be {allowed}", self.text(column))
    }

    /// A number of tokens. 0 counts as 1: something was computed.
    pub(super) fn tokens(&self, column: usize) -> Result<u32, String> {
        let tokens = self.text(column).parse::<u32>().ok().filter(|tokens| *tokens <= MAX_TOKENS);
        let tokens = tokens
            .ok_or_else(|| self.out_of_range(column, &format!("a whole number from 0 to {MAX_TOKENS}")))?;
        Ok(tokens.max(1))
    }

    /// A finite number of at least 0.
    pub(super) fn number(&self, column: usize) -> Result<f64, String> {
        let number = self.text(column).parse::<f64>().ok().filter(|number| (0.0..=1e12).contains(number));
        number.ok_or_else(|| self.out_of_range(column, "a number from 0 to 1e12"))
    }
}

/// The column names of a header.
pub(super) fn column_names(header: &str) -> Vec<String> {
    header.split(',').map(|name| name.trim().to_owned()).collect()
}
