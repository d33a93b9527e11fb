//! Errors of record batches and of their files.

use arrow_schema::{ArrowError, DataType};
use farside_apps::shuffle::ShuffleError;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why an operation on record batches or their files failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum DataError {
    /// The shuffle or the join failed.
    Shuffle(ShuffleError),
    /// An error of the content of this file.
    In(PathBuf, Box<DataError>),
    /// The file cannot be opened, read or written.
    Io(std::io::Error),
    /// The name of the file ends neither in `.csv` nor in `.parquet`.
    Extension,
    /// The file is empty: it has not even a header.
    Empty,
    /// The content is malformed; says where and how.
    Content(String),
    /// There is no column of this name; the second are those that there are.
    NoColumn(String, Vec<String>),
    /// Two columns have this name.
    RepeatedColumn(String),
    /// The two key columns have different types: names and types of the left and the right one.
    KeyTypes([String; 2], Box<[DataType; 2]>),
    /// A column has a type that cannot be sent or joined.
    ColumnType(String, DataType),
    /// The column has another type than in the input before, or is missing in one of them.
    SchemaDiffers(String),
    /// A row has more bytes than a batch of the shuffle.
    RowTooLarge {
        /// Of the row.
        bytes: usize,
        /// The most that are possible.
        possible: usize,
    },
    /// Arrow refused an operation.
    Arrow(ArrowError),
    /// This sender wrote rows that are not of its schema.
    Damaged(u16),
}

impl DataError {
    /// Returns the error with the file in which it is.
    pub fn in_file(self, path: &Path) -> Self {
        match self {
            // What failed is between executors.
            Self::Shuffle(_) | Self::In(..) => self,
            other => Self::In(path.to_owned(), Box::new(other)),
        }
    }

    /// Returns the error without the file.
    pub const fn cause(&self) -> &Self {
        match self {
            Self::In(_, error) => error.cause(),
            other => other,
        }
    }
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shuffle(error) => write!(f, "{error}"),
            Self::In(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Io(error) => write!(f, "{error}"),
            Self::Extension => write!(f, "The name must end in .csv or .parquet."),
            Self::Empty => {
                write!(f, "The file is empty. A CSV file begins with the names of its columns.")
            }
            Self::Content(text) => write!(f, "{text}"),
            Self::NoColumn(name, columns) => {
                write!(f, "There is no column `{name}`. The columns are: {}.", columns.join(", "))
            }
            Self::RepeatedColumn(name) => {
                write!(f, "Two columns have the name `{name}`. Rename one of them.")
            }
            Self::KeyTypes([left, right], types) => write!(
                f,
                "The key columns have different types: `{left}` is {}, `{right}` is {}. Convert one of them.",
                types[0], types[1]
            ),
            Self::ColumnType(name, data_type) => {
                write!(f, "Column `{name}` is of type {data_type}, which is not supported.")
            }
            Self::SchemaDiffers(name) => {
                write!(f, "Column `{name}` is not the same as in the input before.")
            }
            Self::RowTooLarge { bytes, possible } => write!(
                f,
                "A row of {bytes} bytes; a batch has room for {possible}. Use larger batches."
            ),
            Self::Arrow(error) => write!(f, "{error}"),
            Self::Damaged(sender) => write!(
                f,
                "Sender {sender} wrote rows that are not of its schema. Find the program that writes there."
            ),
        }
    }
}

impl std::error::Error for DataError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Shuffle(error) => Some(error),
            Self::In(_, error) => Some(error.as_ref()),
            Self::Io(error) => Some(error),
            Self::Arrow(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ShuffleError> for DataError {
    fn from(error: ShuffleError) -> Self {
        match error {
            ShuffleError::RowSize { bytes, possible } => Self::RowTooLarge { bytes, possible },
            other => Self::Shuffle(other),
        }
    }
}

impl From<ArrowError> for DataError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}

impl From<std::io::Error> for DataError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}
