//! CSV and Parquet files, by their extension.

use crate::DataError;
use crate::column_rows::column;
use crate::shuffle::check_schema;
use arrow_array::RecordBatch;
use arrow_csv::reader::Format;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of a batch of a file.
const BATCH_ROWS: usize = 2048;
/// Rows of a CSV file by which the types of its columns are found.
const INFERRED_ROWS: usize = 10_000;

/// The form of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileFormat {
    /// Comma-separated values with a header (RFC 4180). A field without a character is null.
    Csv,
    /// Apache Parquet: read with Brotli, gzip, LZ4, Snappy, Zstandard or none; written with Snappy.
    Parquet,
}

impl FileFormat {
    /// Both forms.
    pub const ALL: [Self; 2] = [Self::Csv, Self::Parquet];

    /// Returns its name, which is the extension of its files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }

    /// Returns the form of a file by its extension.
    ///
    /// ```
    /// use farside_data::FileFormat;
    ///
    /// assert_eq!(FileFormat::of("orders.csv".as_ref())?, FileFormat::Csv);
    /// assert!(FileFormat::of("orders.txt".as_ref()).is_err());
    /// # Ok::<(), farside_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// `Extension`.
    pub fn of(path: &Path) -> Result<Self, DataError> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let found = Self::ALL.into_iter().find(|one| Some(one.name()) == extension);
        found.ok_or_else(|| DataError::Extension.in_file(path))
    }
}

/// A CSV or Parquet file that is read.
#[derive(Debug)]
pub struct InputFile {
    path: PathBuf,
    schema: SchemaRef,
    bytes: u64,
    /// None for CSV.
    parquet: Option<ArrowReaderMetadata>,
}

impl InputFile {
    /// Opens a file, and finds the types of its columns: those of a CSV file by its first 10,000 rows.
    ///
    /// # Errors
    /// `In` this file: `Extension`, `Io`, `Empty`, `RepeatedColumn`, `Content`.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        Self::try_open(path).map_err(|error| error.in_file(path))
    }

    fn try_open(path: &Path) -> Result<Self, DataError> {
        let format = FileFormat::of(path)?;
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let (schema, parquet) = match format {
            FileFormat::Csv => {
                let inferred = csv_format().infer_schema(BufReader::new(file), Some(INFERRED_ROWS));
                (Arc::new(inferred.map_err(content)?.0), None)
            }
            FileFormat::Parquet => {
                let metadata = parquet_metadata(&file).map_err(|error| parquet_content(&error))?;
                (Arc::clone(metadata.schema()), Some(metadata))
            }
        };
        if schema.fields().is_empty() {
            return Err(DataError::Empty);
        }
        for field in schema.fields() {
            column(&schema, field.name())?;
        }
        Ok(Self { path: path.to_owned(), schema, bytes, parquet })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its length.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns its schema. Columns of a CSV file in which no value was found are of the type `Null` until
    /// [`settle`](Self::settle).
    pub const fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Gives columns of a CSV file in which no value was found the type that `of` returns for their name, or text.
    pub fn settle(&mut self, of: impl Fn(&str) -> Option<DataType>) {
        if self.parquet.is_some() {
            return;
        }
        let settle = |field: &Arc<Field>| match field.data_type() {
            DataType::Null => {
                let found = of(field.name()).filter(|found| *found != DataType::Null);
                let found = found.unwrap_or(DataType::Utf8);
                Arc::new(field.as_ref().clone().with_data_type(found))
            }
            _ => Arc::clone(field),
        };
        let fields: Vec<_> = self.schema.fields().iter().map(settle).collect();
        self.schema = Arc::new(Schema::new(fields));
    }

    /// Checks that its columns are those of another schema.
    ///
    /// # Errors
    /// `In` this file: `SchemaDiffers`.
    pub fn check_schema(&self, expected: &SchemaRef) -> Result<(), DataError> {
        check_schema(expected, &self.schema).map_err(|error| error.in_file(&self.path))
    }

    /// Returns the number of parts that can be read independently: the row groups of a Parquet file, 1 of a CSV file.
    pub fn parts(&self) -> usize {
        self.parquet.as_ref().map_or(1, |metadata| metadata.metadata().num_row_groups())
    }

    /// Returns the batches of a part.
    ///
    /// # Errors
    /// `In` this file: `Io`, `Content`. The batches fail by the same.
    pub fn read(&self, part: usize) -> Result<InputBatches, DataError> {
        let read = || -> Result<Batches, DataError> {
            let file = File::open(&self.path)?;
            Ok(match &self.parquet {
                None => {
                    let builder = arrow_csv::ReaderBuilder::new(Arc::clone(&self.schema));
                    let builder = builder.with_format(csv_format()).with_batch_size(BATCH_ROWS);
                    // The copy shares its position.
                    Batches::Csv(file.try_clone()?, Box::new(builder.build(file).map_err(content)?))
                }
                Some(metadata) => {
                    let builder =
                        ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata.clone());
                    let builder = builder.with_row_groups(vec![part]).with_batch_size(BATCH_ROWS);
                    let batches = builder.build().map_err(|error| parquet_content(&error))?;
                    let rows = metadata.metadata().file_metadata().num_rows();
                    let row_bytes = self.bytes as f64 / rows.max(1) as f64;
                    Batches::Parquet { batches, row_bytes, rows: 0 }
                }
            })
        };
        let batches = read().map_err(|error| error.in_file(&self.path))?;
        Ok(InputBatches { path: self.path.clone(), schema: Arc::clone(&self.schema), batches })
    }
}

fn csv_format() -> Format {
    Format::default().with_header(true)
}

/// The metadata, with columns of dictionaries as columns of their values.
fn parquet_metadata(file: &File) -> Result<ArrowReaderMetadata, ParquetError> {
    let metadata = ArrowReaderMetadata::load(file, ArrowReaderOptions::new())?;
    let plain = |field: &Arc<Field>| match field.data_type() {
        DataType::Dictionary(_, values) => {
            Arc::new(field.as_ref().clone().with_data_type(values.as_ref().clone()))
        }
        _ => Arc::clone(field),
    };
    let fields: Vec<_> = metadata.schema().fields().iter().map(plain).collect();
    let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(fields)));
    ArrowReaderMetadata::try_new(Arc::clone(metadata.metadata()), options)
}

/// The content of a file is malformed, or it could not be read.
fn content(error: ArrowError) -> DataError {
    match error {
        ArrowError::IoError(_, error) => DataError::Io(error),
        ArrowError::CsvError(text) => DataError::Content(text),
        // The number is that of the row after the header.
        ArrowError::ParseError(text) => {
            DataError::Content(text.replacen(" at line ", " in row ", 1))
        }
        other => DataError::Content(other.to_string()),
    }
}

fn parquet_content(error: &ParquetError) -> DataError {
    DataError::Content(error.to_string())
}

/// The batches of a part of a file.
pub struct InputBatches {
    path: PathBuf,
    schema: SchemaRef,
    batches: Batches,
}

enum Batches {
    Csv(File, Box<arrow_csv::Reader<File>>),
    Parquet {
        batches: ParquetRecordBatchReader,
        /// Bytes of the file for each row, and rows that were read.
        row_bytes: f64,
        rows: usize,
    },
}

impl InputBatches {
    /// Returns about how many bytes of the file were read for the batches so far.
    pub fn bytes(&self) -> u64 {
        match &self.batches {
            Batches::Csv(file, _) => (&*file).stream_position().unwrap_or(0),
            Batches::Parquet { row_bytes, rows, .. } => (row_bytes * *rows as f64) as u64,
        }
    }
}

impl fmt::Debug for InputBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InputBatches({})", self.path.display())
    }
}

impl Iterator for InputBatches {
    type Item = Result<RecordBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = match &mut self.batches {
            Batches::Csv(_, batches) => batches.next(),
            Batches::Parquet { batches, rows, .. } => {
                let batch = batches.next();
                if let Some(Ok(batch)) = &batch {
                    *rows += batch.num_rows();
                }
                batch
            }
        }?;
        let batch = batch.and_then(|batch| batch.with_schema(Arc::clone(&self.schema)));
        Some(batch.map_err(|error| content(error).in_file(&self.path)))
    }
}

/// A CSV or Parquet file that is written.
pub struct OutputFile<W: Write + Send>(FileWriter<W>);

enum FileWriter<W: Write + Send> {
    Csv(Box<arrow_csv::Writer<W>>),
    Parquet(Box<ArrowWriter<W>>),
}

impl<W: Write + Send> fmt::Debug for OutputFile<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutputFile")
    }
}

impl<W: Write + Send> OutputFile<W> {
    /// Begins a file of batches of this schema.
    ///
    /// # Errors
    /// `ColumnType` for lists and structs in CSV; `Io`; `Content`.
    pub fn new(format: FileFormat, schema: &SchemaRef, to: W) -> Result<Self, DataError> {
        Ok(Self(match format {
            FileFormat::Csv => {
                let nested = schema.fields().iter().find(|field| field.data_type().is_nested());
                if let Some(field) = nested {
                    let data_type = field.data_type().clone();
                    return Err(DataError::ColumnType(field.name().clone(), data_type));
                }
                let mut writer = arrow_csv::WriterBuilder::new().with_header(true).build(to);
                // The header, also of a file without rows.
                writer.write(&RecordBatch::new_empty(Arc::clone(schema))).map_err(content)?;
                FileWriter::Csv(Box::new(writer))
            }
            FileFormat::Parquet => {
                let options = WriterProperties::builder().set_compression(Compression::SNAPPY);
                let writer = ArrowWriter::try_new(to, Arc::clone(schema), Some(options.build()));
                FileWriter::Parquet(Box::new(writer.map_err(written)?))
            }
        }))
    }

    /// Writes a batch of the schema.
    ///
    /// # Errors
    /// `Io`; `Content`.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DataError> {
        match &mut self.0 {
            FileWriter::Csv(writer) => writer.write(batch).map_err(content),
            FileWriter::Parquet(writer) => writer.write(batch).map_err(written),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// `Io`; `Content`.
    pub fn finish(self) -> Result<(), DataError> {
        match self.0 {
            FileWriter::Csv(writer) => writer.into_inner(),
            FileWriter::Parquet(writer) => writer.into_inner().map_err(written)?,
        }
        .flush()?;
        Ok(())
    }
}

fn written(error: ParquetError) -> DataError {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => DataError::Io(*error),
            Err(error) => DataError::Content(error.to_string()),
        },
        other => parquet_content(&other),
    }
}
