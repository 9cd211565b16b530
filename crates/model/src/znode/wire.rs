//! The byte forms of what is asked of znodes and answered: requests lie in the log, answers in the memory of
//! requests that may come again. Tags are append only.

use crate::codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
use crate::limits::{
    VALUE_BYTES_MAX, ZNODE_ACL_MAX, ZNODE_IDENTITIES_MAX, ZNODE_IDENTITY_BYTES_MAX, ZNODE_OPS_MAX,
    ZNODE_PATH_BYTES_MAX, ZNODE_PATHS_MAX, ZNODE_REQUESTS_MAX, ZNODE_SCHEME_BYTES_MAX,
};
use crate::znode::{
    AclEntry, CreateZnode, Identity, SessionAnswer, ZnodeAnswer, ZnodeCommand, ZnodeError, ZnodeLife, ZnodeOp,
    ZnodeOpAnswer, ZnodeOutcome, ZnodeRequest, ZnodeRequests, ZnodeStat,
};
use crate::{LeaseId, Revision};

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// As two's complement: -1 is common and costs five bytes.
fn put_signed(out: &mut Vec<u8>, number: i32) {
    put_varint(out, u64::from(number.cast_unsigned()));
}

fn signed(input: &mut Reader) -> Result<i32, DecodeError> {
    Ok(input.varint32()?.cast_signed())
}

fn path(input: &mut Reader) -> Result<String, DecodeError> {
    input.text(ZNODE_PATH_BYTES_MAX)
}

fn put_list<T: Wire>(out: &mut Vec<u8>, items: &[T]) {
    put_varint(out, items.len() as u64);
    items.iter().for_each(|item| item.encode(out));
}

fn list<T: Wire>(input: &mut Reader, what: &'static str, max: usize) -> Result<Vec<T>, DecodeError> {
    let count = input.count(what, max)?;
    input.items(count, T::decode)
}

fn put_data(out: &mut Vec<u8>, data: Option<&bytes::Bytes>) {
    out.push(u8::from(data.is_some()));
    if let Some(data) = data {
        put_bytes(out, data);
    }
}

fn data(input: &mut Reader) -> Result<Option<bytes::Bytes>, DecodeError> {
    input.flag()?.then(|| input.bytes(VALUE_BYTES_MAX)).transpose()
}

impl Wire for ZnodeCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ZnodeCommand::OpenSession { timeout_ms } => {
                out.push(1);
                put_varint(out, u64::from(*timeout_ms));
            }
            ZnodeCommand::AttachSession { session, timeout_ms } => {
                out.push(6);
                session.encode(out);
                put_varint(out, u64::from(*timeout_ms));
            }
            ZnodeCommand::CloseSession { session } => {
                out.push(3);
                session.encode(out);
            }
            ZnodeCommand::Requests(requests) => {
                out.push(4);
                requests.encode(out);
            }
            ZnodeCommand::RequestsWithinQuotas(requests) => {
                out.push(7);
                requests.encode(out);
            }
            ZnodeCommand::Reap { paths } => {
                out.push(5);
                put_varint(out, paths.len() as u64);
                paths.iter().for_each(|path| put_text(out, path));
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<ZnodeCommand, DecodeError> {
        Ok(match input.byte()? {
            1 => ZnodeCommand::OpenSession { timeout_ms: input.varint32()? },
            // As written before a timeout could change.
            2 => ZnodeCommand::AttachSession { session: LeaseId::decode(input)?, timeout_ms: 0 },
            3 => ZnodeCommand::CloseSession { session: LeaseId::decode(input)? },
            4 => ZnodeCommand::Requests(ZnodeRequests::decode(input)?),
            5 => {
                let count = input.count("the number of paths", ZNODE_PATHS_MAX)?;
                ZnodeCommand::Reap { paths: (0..count).map(|_| path(input)).collect::<Result<_, _>>()? }
            }
            6 => ZnodeCommand::AttachSession { session: LeaseId::decode(input)?, timeout_ms: input.varint32()? },
            7 => ZnodeCommand::RequestsWithinQuotas(ZnodeRequests::decode(input)?),
            tag => return Err(DecodeError::UnknownTag { what: "znode command", tag }),
        })
    }
}

impl Wire for ZnodeRequests {
    fn encode(&self, out: &mut Vec<u8>) {
        self.session.encode(out);
        put_varint(out, self.generation);
        put_list(out, &self.identities);
        put_list(out, &self.requests);
    }

    fn decode(input: &mut Reader) -> Result<ZnodeRequests, DecodeError> {
        Ok(ZnodeRequests {
            session: LeaseId::decode(input)?,
            generation: input.varint()?,
            identities: list(input, "the number of identities", ZNODE_IDENTITIES_MAX)?,
            requests: list(input, "the number of requests", ZNODE_REQUESTS_MAX)?,
        })
    }
}

impl Wire for ZnodeRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ZnodeRequest::One(op) => {
                out.push(1);
                op.encode(out);
            }
            ZnodeRequest::Multi(ops) => {
                out.push(2);
                put_list(out, ops);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<ZnodeRequest, DecodeError> {
        Ok(match input.byte()? {
            1 => ZnodeRequest::One(ZnodeOp::decode(input)?),
            2 => ZnodeRequest::Multi(list(input, "the number of operations", ZNODE_OPS_MAX)?),
            tag => return Err(DecodeError::UnknownTag { what: "znode request", tag }),
        })
    }
}

impl Wire for ZnodeOp {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ZnodeOp::Create(create) => {
                out.push(1);
                create.encode(out);
            }
            ZnodeOp::Delete { path, version } => {
                out.push(2);
                put_text(out, path);
                put_signed(out, *version);
            }
            ZnodeOp::SetData { path, data, version } => {
                out.push(3);
                put_text(out, path);
                put_data(out, data.as_ref());
                put_signed(out, *version);
            }
            ZnodeOp::SetAcl { path, acl, version } => {
                out.push(4);
                put_text(out, path);
                put_list(out, acl);
                put_signed(out, *version);
            }
            ZnodeOp::Check { path, version } => {
                out.push(5);
                put_text(out, path);
                put_signed(out, *version);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<ZnodeOp, DecodeError> {
        Ok(match input.byte()? {
            1 => ZnodeOp::Create(CreateZnode::decode(input)?),
            2 => ZnodeOp::Delete { path: path(input)?, version: signed(input)? },
            3 => ZnodeOp::SetData { path: path(input)?, data: data(input)?, version: signed(input)? },
            4 => ZnodeOp::SetAcl {
                path: path(input)?,
                acl: list(input, "a list of rights", ZNODE_ACL_MAX)?,
                version: signed(input)?,
            },
            5 => ZnodeOp::Check { path: path(input)?, version: signed(input)? },
            tag => return Err(DecodeError::UnknownTag { what: "znode operation", tag }),
        })
    }
}

impl Wire for CreateZnode {
    fn encode(&self, out: &mut Vec<u8>) {
        put_text(out, &self.path);
        put_data(out, self.data.as_ref());
        put_list(out, &self.acl);
        self.life.encode(out);
        out.push(u8::from(self.sequential));
    }

    fn decode(input: &mut Reader) -> Result<CreateZnode, DecodeError> {
        Ok(CreateZnode {
            path: path(input)?,
            data: data(input)?,
            acl: list(input, "a list of rights", ZNODE_ACL_MAX)?,
            life: ZnodeLife::decode(input)?,
            sequential: input.flag()?,
        })
    }
}

impl Wire for ZnodeLife {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ZnodeLife::Persistent => out.push(1),
            ZnodeLife::Ephemeral => out.push(2),
            ZnodeLife::Container => out.push(3),
            ZnodeLife::Ttl(ttl_ms) => {
                out.push(4);
                put_varint(out, *ttl_ms);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<ZnodeLife, DecodeError> {
        Ok(match input.byte()? {
            1 => ZnodeLife::Persistent,
            2 => ZnodeLife::Ephemeral,
            3 => ZnodeLife::Container,
            4 => ZnodeLife::Ttl(input.varint()?),
            tag => return Err(DecodeError::UnknownTag { what: "life of a znode", tag }),
        })
    }
}

impl Wire for Identity {
    fn encode(&self, out: &mut Vec<u8>) {
        put_text(out, &self.scheme);
        put_text(out, &self.id);
    }

    fn decode(input: &mut Reader) -> Result<Identity, DecodeError> {
        Ok(Identity { scheme: input.text(ZNODE_SCHEME_BYTES_MAX)?, id: input.text(ZNODE_IDENTITY_BYTES_MAX)? })
    }
}

impl Wire for AclEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        put_signed(out, self.permissions);
        self.who.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<AclEntry, DecodeError> {
        Ok(AclEntry { permissions: signed(input)?, who: Identity::decode(input)? })
    }
}

impl Wire for ZnodeStat {
    fn encode(&self, out: &mut Vec<u8>) {
        self.created.encode(out);
        self.modified.encode(out);
        put_varint(out, self.created_ms);
        put_varint(out, self.modified_ms);
        put_signed(out, self.version);
        put_signed(out, self.child_version);
        put_signed(out, self.acl_version);
        self.owner.encode(out);
        put_varint(out, u64::from(self.data_length));
        put_varint(out, u64::from(self.children));
        self.children_modified.encode(out);
    }

    fn decode(input: &mut Reader) -> Result<ZnodeStat, DecodeError> {
        Ok(ZnodeStat {
            created: Revision::decode(input)?,
            modified: Revision::decode(input)?,
            created_ms: input.varint()?,
            modified_ms: input.varint()?,
            version: signed(input)?,
            child_version: signed(input)?,
            acl_version: signed(input)?,
            owner: LeaseId::decode(input)?,
            data_length: input.varint32()?,
            children: input.varint32()?,
            children_modified: Revision::decode(input)?,
        })
    }
}

const ERRORS: [ZnodeError; 11] = [
    ZnodeError::NoNode,
    ZnodeError::NoAuth,
    ZnodeError::BadVersion,
    ZnodeError::NoChildrenForEphemerals,
    ZnodeError::NodeExists,
    ZnodeError::NotEmpty,
    ZnodeError::InvalidAcl,
    ZnodeError::BadArguments,
    ZnodeError::SessionExpired,
    ZnodeError::SessionMoved,
    ZnodeError::QuotaExceeded,
];

impl Wire for ZnodeError {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            ZnodeError::NoNode => 0,
            ZnodeError::NoAuth => 1,
            ZnodeError::BadVersion => 2,
            ZnodeError::NoChildrenForEphemerals => 3,
            ZnodeError::NodeExists => 4,
            ZnodeError::NotEmpty => 5,
            ZnodeError::InvalidAcl => 6,
            ZnodeError::BadArguments => 7,
            ZnodeError::SessionExpired => 8,
            ZnodeError::SessionMoved => 9,
            ZnodeError::QuotaExceeded => 10,
        });
    }

    fn decode(input: &mut Reader) -> Result<ZnodeError, DecodeError> {
        let tag = input.byte()?;
        ERRORS.get(usize::from(tag)).copied().ok_or(DecodeError::UnknownTag { what: "znode error", tag })
    }
}

impl Wire for SessionAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        self.session.encode(out);
        put_varint(out, u64::from(self.timeout_ms));
        put_varint(out, self.generation);
    }

    fn decode(input: &mut Reader) -> Result<SessionAnswer, DecodeError> {
        Ok(SessionAnswer {
            session: LeaseId::decode(input)?,
            timeout_ms: input.varint32()?,
            generation: input.varint()?,
        })
    }
}

impl Wire for ZnodeOutcome {
    fn encode(&self, out: &mut Vec<u8>) {
        self.revision.encode(out);
        match &self.result {
            Ok(answer) => {
                out.push(1);
                answer.encode(out);
            }
            Err(error) => {
                out.push(0);
                error.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<ZnodeOutcome, DecodeError> {
        let revision = Revision::decode(input)?;
        let result = if input.flag()? { Ok(ZnodeAnswer::decode(input)?) } else { Err(ZnodeError::decode(input)?) };
        Ok(ZnodeOutcome { revision, result })
    }
}

impl Wire for ZnodeAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ZnodeAnswer::One(answer) => {
                out.push(1);
                answer.encode(out);
            }
            ZnodeAnswer::Multi(answers) => {
                out.push(2);
                put_list(out, answers);
            }
            ZnodeAnswer::MultiFailed { at, error } => {
                out.push(3);
                put_varint(out, u64::from(*at));
                error.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader) -> Result<ZnodeAnswer, DecodeError> {
        Ok(match input.byte()? {
            1 => ZnodeAnswer::One(ZnodeOpAnswer::decode(input)?),
            2 => ZnodeAnswer::Multi(list(input, "the number of answers", ZNODE_OPS_MAX)?),
            3 => ZnodeAnswer::MultiFailed { at: input.varint32()?, error: ZnodeError::decode(input)? },
            tag => return Err(DecodeError::UnknownTag { what: "znode answer", tag }),
        })
    }
}

impl Wire for ZnodeOpAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ZnodeOpAnswer::Created { path, stat } => {
                out.push(1);
                put_text(out, path);
                stat.encode(out);
            }
            ZnodeOpAnswer::Changed(stat) => {
                out.push(2);
                stat.encode(out);
            }
            ZnodeOpAnswer::Done => out.push(3),
        }
    }

    fn decode(input: &mut Reader) -> Result<ZnodeOpAnswer, DecodeError> {
        Ok(match input.byte()? {
            1 => ZnodeOpAnswer::Created { path: path(input)?, stat: ZnodeStat::decode(input)? },
            2 => ZnodeOpAnswer::Changed(ZnodeStat::decode(input)?),
            3 => ZnodeOpAnswer::Done,
            tag => return Err(DecodeError::UnknownTag { what: "znode operation answer", tag }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Command, LogIndex, Outcome};
    use bytes::Bytes;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = String> {
        "[a-c/é]{0,12}"
    }
    fn identity() -> impl Strategy<Value = Identity> {
        (text(), text()).prop_map(|(scheme, id)| Identity { scheme, id })
    }
    fn acl() -> impl Strategy<Value = Vec<AclEntry>> {
        let entry = (any::<i32>(), identity()).prop_map(|(permissions, who)| AclEntry { permissions, who });
        proptest::collection::vec(entry, 0..4)
    }
    fn data() -> impl Strategy<Value = Option<Bytes>> {
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from))
    }
    fn life() -> impl Strategy<Value = ZnodeLife> {
        prop_oneof![
            Just(ZnodeLife::Persistent),
            Just(ZnodeLife::Ephemeral),
            Just(ZnodeLife::Container),
            any::<u64>().prop_map(ZnodeLife::Ttl)
        ]
    }
    fn op() -> impl Strategy<Value = ZnodeOp> {
        prop_oneof![
            (text(), data(), acl(), life(), any::<bool>()).prop_map(|(path, data, acl, life, sequential)| {
                ZnodeOp::Create(CreateZnode { path, data, acl, life, sequential })
            }),
            (text(), any::<i32>()).prop_map(|(path, version)| ZnodeOp::Delete { path, version }),
            (text(), data(), any::<i32>()).prop_map(|(path, data, version)| ZnodeOp::SetData { path, data, version }),
            (text(), acl(), any::<i32>()).prop_map(|(path, acl, version)| ZnodeOp::SetAcl { path, acl, version }),
            (text(), any::<i32>()).prop_map(|(path, version)| ZnodeOp::Check { path, version }),
        ]
    }
    fn command() -> impl Strategy<Value = ZnodeCommand> {
        let request = prop_oneof![
            op().prop_map(ZnodeRequest::One),
            proptest::collection::vec(op(), 0..4).prop_map(ZnodeRequest::Multi)
        ];
        let identities = proptest::collection::vec(identity(), 0..3);
        let requests = proptest::collection::vec(request, 0..4);
        let requests = (any::<bool>(), any::<i64>(), any::<u64>(), identities, requests).prop_map(
            |(within_quotas, id, generation, identities, requests)| {
                let requests = ZnodeRequests { session: LeaseId(id), generation, identities, requests };
                if within_quotas {
                    ZnodeCommand::RequestsWithinQuotas(requests)
                } else {
                    ZnodeCommand::Requests(requests)
                }
            },
        );
        prop_oneof![
            1 => any::<u32>().prop_map(|timeout_ms| ZnodeCommand::OpenSession { timeout_ms }),
            1 => (any::<i64>(), any::<u32>())
                .prop_map(|(id, timeout_ms)| ZnodeCommand::AttachSession { session: LeaseId(id), timeout_ms }),
            1 => any::<i64>().prop_map(|id| ZnodeCommand::CloseSession { session: LeaseId(id) }),
            6 => requests,
            1 => proptest::collection::vec(text(), 0..4).prop_map(|paths| ZnodeCommand::Reap { paths }),
        ]
    }

    proptest! {
        #[test]
        fn a_znode_command_survives_the_round_trip(command in command()) {
            let command = Command::Znode(command);
            prop_assert_eq!(Command::from_bytes(command.to_bytes().into()), Ok(command));
        }

        /// Z1: bytes from a damaged disk or a hostile peer are refused, never a panic.
        #[test]
        fn a_damaged_znode_command_is_refused_or_read(command in command(), at: usize, bit in 0..8) {
            let mut bytes = command.to_bytes();
            let at = at % bytes.len();
            bytes[at] ^= 1u8 << bit;
            let _ = ZnodeCommand::from_bytes(bytes.into());
        }

        /// What is called within limits by the sender is read by every receiver.
        #[test]
        fn what_is_within_limits_can_be_read(command in command()) {
            prop_assert!(command.is_within_limits());
        }
    }

    /// A log that was written before must be read after.
    #[test]
    fn taking_a_session_over_is_read_as_it_was_written_before_timeouts_could_change() {
        let mut bytes = vec![2];
        LeaseId(9).encode(&mut bytes);
        let expected = ZnodeCommand::AttachSession { session: LeaseId(9), timeout_ms: 0 };
        assert_eq!(ZnodeCommand::from_bytes(bytes.into()), Ok(expected));
    }

    /// One request over a limit would make the whole entry unreadable, and others' requests with it.
    #[test]
    fn a_request_over_a_limit_is_told_before_it_is_sent() {
        let delete = |path: String| ZnodeOp::Delete { path, version: -1 };
        let one = |op| {
            ZnodeCommand::Requests(ZnodeRequests {
                session: LeaseId(1),
                generation: 1,
                identities: vec![],
                requests: vec![ZnodeRequest::One(op)],
            })
        };
        let long = |extra| one(delete("p".repeat(ZNODE_PATH_BYTES_MAX + extra)));
        assert!(long(0).is_within_limits() && ZnodeCommand::from_bytes(long(0).to_bytes().into()).is_ok());
        assert!(!long(1).is_within_limits() && ZnodeCommand::from_bytes(long(1).to_bytes().into()).is_err());
        let who = |extra| Identity { scheme: "ip".into(), id: "i".repeat(ZNODE_IDENTITY_BYTES_MAX + extra) };
        let acl = |count, extra| {
            let entry = AclEntry { permissions: 1, who: who(extra) };
            one(ZnodeOp::SetAcl { path: "/".into(), acl: vec![entry; count], version: -1 })
        };
        for (count, extra, fits) in
            [(1, 0, true), (1, 1, false), (ZNODE_ACL_MAX, 0, true), (ZNODE_ACL_MAX + 1, 0, false)]
        {
            let command = acl(count, extra);
            assert_eq!(command.is_within_limits(), fits);
            assert_eq!(ZnodeCommand::from_bytes(command.to_bytes().into()).is_ok(), fits);
        }
    }

    /// Answers are remembered for clients that ask again, and travel in snapshots (H25).
    #[test]
    fn answers_survive_the_round_trip() {
        let stat = ZnodeStat {
            created: Revision(3),
            modified: Revision(9),
            created_ms: 1,
            modified_ms: 2,
            version: -1,
            child_version: i32::MIN,
            acl_version: 7,
            owner: LeaseId(1 << 56),
            data_length: 5,
            children: 6,
            children_modified: Revision(8),
        };
        let created = ZnodeOpAnswer::Created { path: "/a0000000000".into(), stat };
        let mut results = vec![
            Ok(ZnodeAnswer::One(created.clone())),
            Ok(ZnodeAnswer::Multi(vec![created, ZnodeOpAnswer::Changed(stat), ZnodeOpAnswer::Done])),
            Ok(ZnodeAnswer::MultiFailed { at: 4, error: ZnodeError::NotEmpty }),
        ];
        results.extend(ERRORS.map(Err));
        let outcomes = results.into_iter().map(|result| ZnodeOutcome { revision: Revision(4), result }).collect();
        let session = SessionAnswer { session: LeaseId(1 << 56), timeout_ms: 4000, generation: 2 };
        for answer in [Answer::Znodes(outcomes), Answer::Session(session)] {
            let outcome = Outcome { revision: Revision(1), index: LogIndex(2), result: Ok(answer) };
            assert_eq!(Outcome::from_bytes(outcome.to_bytes().into()), Ok(outcome));
        }
    }
}
