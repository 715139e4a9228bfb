//! Templates as trees.

use super::lexer::{Part, Token, parts};
use super::value::{TemplateError, Value};

/// Deepest nesting of blocks and parentheses.
const MAX_DEPTH: usize = 32;
/// The functions of Go's templates that there are here.
const FUNCTIONS: [&str; 9] = ["and", "eq", "index", "len", "ne", "not", "or", "print", "printf"];

/// A piece of a template.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Text(String),
    /// Writes a value, unless it is only given to a variable.
    Write(Pipeline),
    If(Pipeline, Vec<Self>, Vec<Self>),
    With(Pipeline, Vec<Self>, Vec<Self>),
    Range(Pipeline, Vec<Self>, Vec<Self>),
}

/// Commands, each of which gets the result of the one before as its last argument.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pipeline {
    /// The variables that get the result; for `range`, the key and the value.
    pub(super) variables: Vec<String>,
    /// Whether the variables are new ones.
    pub(super) declares: bool,
    pub(super) commands: Vec<Command>,
}

/// A value, or a function with its arguments.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Command {
    Value(Operand),
    Call(String, Vec<Operand>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operand {
    Literal(Value),
    /// What is read of the current value.
    Field(Vec<String>),
    Variable(String, Vec<String>),
    Pipeline(Pipeline),
}

/// How a block ends.
enum End {
    OfTemplate,
    Block,
    /// With the words after `else`.
    Else(Vec<Token>),
}

pub(super) fn parse(text: &str) -> Result<Vec<Node>, TemplateError> {
    let mut parser = Parser { parts: parts(text)?.into_iter(), variables: vec![String::new()] };
    match parser.block(0)? {
        (nodes, End::OfTemplate) => Ok(nodes),
        (_, End::Block) => Err(TemplateError::new("end without a block")),
        (_, End::Else(_)) => Err(TemplateError::new("else without a block")),
    }
}

/// What is wrong in a template is an error when it is read: whoever reads a metric can mend nothing.
struct Parser {
    parts: std::vec::IntoIter<Part>,
    /// Those that there are at this place.
    variables: Vec<String>,
}

impl Parser {
    fn block(&mut self, depth: usize) -> Result<(Vec<Node>, End), TemplateError> {
        let before = self.variables.len();
        let mut nodes = Vec::new();
        let mut end = End::OfTemplate;
        while let Some(part) = self.parts.next() {
            let tokens = match part {
                Part::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Part::Action(tokens) => tokens,
            };
            let word = match tokens.first() {
                Some(Token::Word(word)) => word.as_str(),
                _ => "",
            };
            match word {
                "end" if tokens.len() == 1 => {
                    end = End::Block;
                    break;
                }
                "else" => {
                    end = End::Else(tokens[1..].to_vec());
                    break;
                }
                "if" | "with" | "range" => nodes.push(self.branch(word, &tokens[1..], depth + 1)?),
                _ => nodes.push(Node::Write(self.pipeline(&tokens, depth)?)),
            }
        }
        self.variables.truncate(before);
        Ok((nodes, end))
    }

    fn branch(&mut self, word: &str, condition: &[Token], depth: usize) -> Result<Node, TemplateError> {
        check_depth(depth)?;
        let before = self.variables.len();
        let condition = self.pipeline(condition, depth)?;
        if condition.variables.len() > 1 && word != "range" {
            return Err(TemplateError::new("only range has two variables"));
        }
        let (then, end) = self.block(depth)?;
        let otherwise = match end {
            End::Block => Vec::new(),
            End::OfTemplate => return Err(TemplateError::new(format!("{word} without end"))),
            End::Else(words) => match words.split_first() {
                Some((Token::Word(word), condition)) if word == "if" || word == "with" => {
                    vec![self.branch(word, condition, depth + 1)?]
                }
                Some(_) => return Err(TemplateError::new("else is followed by neither if nor with")),
                None => match self.block(depth)? {
                    (nodes, End::Block) => nodes,
                    _ => return Err(TemplateError::new("else without end")),
                },
            },
        };
        self.variables.truncate(before);
        Ok(match word {
            "if" => Node::If(condition, then, otherwise),
            "with" => Node::With(condition, then, otherwise),
            _ => Node::Range(condition, then, otherwise),
        })
    }

    /// `[ $variable {, $variable} (:= | =) ] command { | command }`
    fn pipeline(&mut self, tokens: &[Token], depth: usize) -> Result<Pipeline, TemplateError> {
        check_depth(depth)?;
        let assignment = tokens.iter().position(|token| matches!(token, Token::Declare | Token::Assign));
        let (variables, declares, tokens) = match assignment {
            Some(at) => (variables(&tokens[..at])?, tokens[at] == Token::Declare, &tokens[at + 1..]),
            None => (Vec::new(), false, tokens),
        };
        let commands = split_pipes(tokens).map(|tokens| self.command(tokens, depth));
        let commands = commands.collect::<Result<_, _>>()?;
        if declares {
            self.variables.extend(variables.iter().cloned());
        } else {
            variables.iter().try_for_each(|name| self.check_variable(name))?;
        }
        Ok(Pipeline { variables, declares, commands })
    }

    fn command(&mut self, tokens: &[Token], depth: usize) -> Result<Command, TemplateError> {
        let (first, rest) = tokens.split_first().ok_or_else(|| TemplateError::new("a value is missing"))?;
        match first {
            Token::Word(word) if !matches!(word.as_str(), "true" | "false" | "nil") => {
                if !FUNCTIONS.contains(&word.as_str()) {
                    let known = FUNCTIONS.join(", ");
                    return Err(TemplateError::new(format!(
                        "there is no function {word} here; there are {known}"
                    )));
                }
                Ok(Command::Call(word.clone(), self.operands(rest, depth)?))
            }
            _ => match self.operands(tokens, depth)?.as_slice() {
                [operand] => Ok(Command::Value(operand.clone())),
                _ => Err(TemplateError::new("only a function has arguments")),
            },
        }
    }

    fn operands(&mut self, mut tokens: &[Token], depth: usize) -> Result<Vec<Operand>, TemplateError> {
        let mut operands = Vec::new();
        while let Some((first, rest)) = tokens.split_first() {
            tokens = rest;
            operands.push(match first {
                Token::Text(text) => Operand::Literal(Value::Text(text.clone())),
                Token::Number(number) => Operand::Literal(Value::Number(*number)),
                Token::Field(path) => Operand::Field(path.clone()),
                Token::Variable(name, path) => {
                    self.check_variable(name)?;
                    Operand::Variable(name.clone(), path.clone())
                }
                Token::Word(word) => match word.as_str() {
                    "true" => Operand::Literal(Value::Bool(true)),
                    "false" => Operand::Literal(Value::Bool(false)),
                    "nil" => Operand::Literal(Value::Missing),
                    // A function without arguments.
                    _ => Operand::Pipeline(self.pipeline(std::slice::from_ref(first), depth + 1)?),
                },
                Token::Open => {
                    let end = closing(rest).ok_or_else(|| TemplateError::new("( is not closed by )"))?;
                    tokens = &rest[end + 1..];
                    Operand::Pipeline(self.pipeline(&rest[..end], depth + 1)?)
                }
                token => return Err(TemplateError::new(format!("unexpected {token:?}"))),
            });
        }
        Ok(operands)
    }

    fn check_variable(&self, name: &String) -> Result<(), TemplateError> {
        let unknown = || TemplateError::new(format!("there is no variable ${name}"));
        if self.variables.contains(name) { Ok(()) } else { Err(unknown()) }
    }
}

fn check_depth(depth: usize) -> Result<(), TemplateError> {
    let too_deep = || TemplateError::new(format!("more than {MAX_DEPTH} blocks in each other"));
    if depth > MAX_DEPTH { Err(too_deep()) } else { Ok(()) }
}

fn variables(tokens: &[Token]) -> Result<Vec<String>, TemplateError> {
    let name = |tokens: &[Token]| match tokens {
        [Token::Variable(name, path)] if path.is_empty() && !name.is_empty() => Ok(name.clone()),
        _ => Err(TemplateError::new("before := are one or two variables, such as $value")),
    };
    let names: Vec<_> = tokens.split(|token| *token == Token::Comma).map(name).collect::<Result<_, _>>()?;
    if names.len() > 2 {
        return Err(TemplateError::new("before := are one or two variables, such as $value"));
    }
    Ok(names)
}

/// The commands between pipes that are in no parentheses.
fn split_pipes(tokens: &[Token]) -> impl Iterator<Item = &[Token]> {
    let mut open = 0_usize;
    tokens.split(move |token| {
        match token {
            Token::Open => open += 1,
            Token::Close => open = open.saturating_sub(1),
            _ => {}
        }
        open == 0 && *token == Token::Pipe
    })
}

/// Where the parenthesis before `tokens` is closed.
fn closing(tokens: &[Token]) -> Option<usize> {
    let mut open = 1_usize;
    tokens.iter().position(|token| {
        match token {
            Token::Open => open += 1,
            Token::Close => open -= 1,
            _ => {}
        }
        open == 0
    })
}
