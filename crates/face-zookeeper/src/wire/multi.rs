//! The operations inside multi and multiRead.
//!
//! Each has a header {type, done, err}; one that says `done` ends the list whatever else it says. A multi only
//! changes things and a multiRead only reads: ZooKeeper refuses a mixture as a bad record (-5).

use bytes::Bytes;

use super::codes::opcode;
use super::jute::{Defect, Reader};
use super::request::{CreateCall, CreateRequest};

/// One operation of a multi.
#[allow(missing_docs, reason = "the fields are named as in ZooKeeper's records")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultiOp {
    /// Any of the four creates.
    Create(CreateRequest),
    /// Deletes a znode.
    Delete { path: String, version: i32 },
    /// Sets a znode's data.
    SetData { path: String, data: Option<Bytes>, version: i32 },
    /// Fails the multi unless the znode has that version.
    Check { path: String, version: i32 },
}

/// One operation of a multiRead. Each may set a watch.
#[allow(missing_docs, reason = "the fields are named as in ZooKeeper's records")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultiReadOp {
    /// Data and Stat.
    GetData { path: String, watch: bool },
    /// The children's names, without a Stat.
    GetChildren { path: String, watch: bool },
}

impl MultiOp {
    pub(super) fn read_list(reader: &mut Reader) -> Result<Vec<MultiOp>, Defect> {
        read_until_done(reader, MultiOp::read)
    }

    /// Here a null path is always a bad record, also in setData.
    fn read(reader: &mut Reader, op: i32) -> Result<MultiOp, Defect> {
        Ok(match op {
            opcode::CREATE => MultiOp::Create(CreateRequest::read(reader, CreateCall::Create)?),
            opcode::CREATE2 => MultiOp::Create(CreateRequest::read(reader, CreateCall::Create2)?),
            opcode::CREATE_CONTAINER => MultiOp::Create(CreateRequest::read(reader, CreateCall::CreateContainer)?),
            opcode::CREATE_TTL => MultiOp::Create(CreateRequest::read_with_ttl(reader)?),
            opcode::DELETE => MultiOp::Delete { path: reader.required_string("path")?, version: reader.int()? },
            opcode::SET_DATA => MultiOp::SetData {
                path: reader.required_string("path")?,
                data: reader.buffer()?,
                version: reader.int()?,
            },
            opcode::CHECK => MultiOp::Check { path: reader.required_string("path")?, version: reader.int()? },
            value => return Err(Defect::UnknownValue { what: "operation of a multi", value }),
        })
    }
}

impl MultiReadOp {
    pub(super) fn read_list(reader: &mut Reader) -> Result<Vec<MultiReadOp>, Defect> {
        read_until_done(reader, MultiReadOp::read)
    }

    fn read(reader: &mut Reader, op: i32) -> Result<MultiReadOp, Defect> {
        Ok(match op {
            opcode::GET_DATA => {
                MultiReadOp::GetData { path: reader.required_string("path")?, watch: reader.boolean()? }
            }
            opcode::GET_CHILDREN => {
                MultiReadOp::GetChildren { path: reader.required_string("path")?, watch: reader.boolean()? }
            }
            value => return Err(Defect::UnknownValue { what: "operation of a multiRead", value }),
        })
    }
}

/// Every turn takes at least a header's bytes off the frame, so the list is bounded by the frame's length.
fn read_until_done<T>(
    reader: &mut Reader,
    operation: impl Fn(&mut Reader, i32) -> Result<T, Defect>,
) -> Result<Vec<T>, Defect> {
    let mut all = Vec::new();
    loop {
        let op = reader.int()?;
        let done = reader.boolean()?;
        // Clients put -1 here; ZooKeeper does not look at it.
        let _error = reader.int()?;
        if done {
            return Ok(all);
        }
        all.push(operation(reader, op)?);
    }
}
