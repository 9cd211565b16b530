//! The byte forms of native requests, answers and records. Requests lie in the log, answers in the memory of
//! requests that may come again, records in the store. Tags are append only, fields are never reordered.

use crate::LeaseId;
use crate::codec::{DecodeError, Reader, Wire, put_bytes, put_varint};
use crate::limits::{AUTH_NAME_BYTES_MAX, NATIVE_DATA_BYTES_MAX, NATIVE_NAME_BYTES_MAX};
use crate::native::records::{Barrier, Gate, HazardStage, Phaser, PhaserTally, Semaphore, Stored};
use crate::native::{
    Data, Fencing, Kind, Mode, Name, NativeAnswer, NativeCommand, NativeError, NativeOp, NativeRequest, OnDeath, Wait,
};

/// A tag, then the fields in the order given.
macro_rules! wire_enum {
    ($name:ident, $what:literal: $($tag:literal => $variant:ident $({ $($field:ident),* })? $(($inner:ident))?,)*) => {
        impl Wire for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$variant $({ $($field),* })? $(($inner))? => {
                        out.push($tag);
                        $($($field.encode(out);)*)?
                        $($inner.encode(out);)?
                    })*
                }
            }
            fn decode(input: &mut Reader) -> Result<$name, DecodeError> {
                Ok(match input.byte()? {
                    $($tag => {
                        $($(let $field = Wire::decode(input)?;)*)?
                        $(let $inner = Wire::decode(input)?;)?
                        $name::$variant $({ $($field),* })? $(($inner))?
                    })*
                    tag => return Err(DecodeError::UnknownTag { what: $what, tag }),
                })
            }
        }
    };
}

/// The fields in the order given.
macro_rules! wire_struct {
    ($name:ident: $($field:ident),*) => {
        impl Wire for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.$field.encode(out);)*
            }
            fn decode(input: &mut Reader) -> Result<$name, DecodeError> {
                $(let $field = Wire::decode(input)?;)*
                Ok($name { $($field),* })
            }
        }
    };
}

impl Wire for u64 {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, *self);
    }
    fn decode(input: &mut Reader) -> Result<u64, DecodeError> {
        input.varint()
    }
}

impl Wire for u32 {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(*self));
    }
    fn decode(input: &mut Reader) -> Result<u32, DecodeError> {
        input.varint32()
    }
}

/// Zigzag: small numbers of either sign are short.
impl Wire for i64 {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, (*self as u64) << 1 ^ (*self >> 63) as u64);
    }
    fn decode(input: &mut Reader) -> Result<i64, DecodeError> {
        let folded = input.varint()?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }
}

impl Wire for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn decode(input: &mut Reader) -> Result<bool, DecodeError> {
        input.flag()
    }
}

impl Wire for Name {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_str().as_bytes());
    }
    fn decode(input: &mut Reader) -> Result<Name, DecodeError> {
        let bytes = input.short_bytes(NATIVE_NAME_BYTES_MAX)?;
        let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::BadText)?;
        Name::new(text).map_err(|_| DecodeError::BadText)
    }
}

impl Wire for Data {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_bytes());
    }
    fn decode(input: &mut Reader) -> Result<Data, DecodeError> {
        let bytes = input.bytes(NATIVE_DATA_BYTES_MAX)?;
        Data::new(bytes).map_err(|_| DecodeError::TooLarge { what: "data" })
    }
}

impl Wire for Kind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn decode(input: &mut Reader) -> Result<Kind, DecodeError> {
        let tag = input.byte()?;
        Kind::from_byte(tag).ok_or(DecodeError::UnknownTag { what: "kind", tag })
    }
}

wire_enum! { Mode, "mode":
    1 => Exclusive,
    2 => Shared,
    3 => Permits(weight),
}
wire_enum! { OnDeath, "policy":
    1 => Shrink,
    2 => Break,
}
wire_enum! { Wait, "wait":
    1 => Try,
    2 => Queue(most),
}
wire_enum! { Gate, "gate":
    1 => Shut,
    2 => Open,
    3 => Left,
    4 => Broken,
}
wire_struct! { Fencing: fence, token }
wire_struct! { NativeRequest: session, number, acknowledged, op }

impl Wire for NativeCommand {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            NativeCommand::Open { ttl_ms, owner } => {
                out.push(1);
                ttl_ms.encode(out);
                put_bytes(out, owner.as_bytes());
            }
            NativeCommand::Close { session } => {
                out.push(2);
                session.encode(out);
            }
            NativeCommand::Request(request) => {
                out.push(3);
                request.encode(out);
            }
        }
    }
    fn decode(input: &mut Reader) -> Result<NativeCommand, DecodeError> {
        Ok(match input.byte()? {
            1 => NativeCommand::Open { ttl_ms: input.varint32()?, owner: input.text(AUTH_NAME_BYTES_MAX)? },
            2 => NativeCommand::Close { session: LeaseId::decode(input)? },
            3 => NativeCommand::Request(NativeRequest::decode(input)?),
            tag => return Err(DecodeError::UnknownTag { what: "native command", tag }),
        })
    }
}

wire_enum! { NativeOp, "native operation":
    1 => Acquire { name, mode, permits, wait, data },
    2 => Campaign { name, wait, data },
    3 => Release { kind, name, token },
    4 => GiveUp { kind, name, place },
    5 => Resign { name, token, successor },
    6 => Downgrade { name, token },
    7 => Proclaim { name, token, data },
    8 => Renew { kind, name, token, ttl_ms },
    9 => Resize { name, permits },
    10 => Enter { name, parties, double, on_death },
    11 => Leave { name, place },
    12 => SetLatch { name, count, on_death },
    13 => Pledge { name },
    14 => CountDown { name, by, pledge },
    15 => Register { name, parties, parent, on_death },
    16 => Arrive { name, party, count, deregister },
    17 => Add { name, delta, fencing },
    18 => CompareAndSet { name, expected, value, fencing },
    19 => Admit(fencing),
    20 => Publish { name, data, fencing },
    21 => StartReading { name },
    22 => Report { name, reader, version },
    23 => Protect { name },
    24 => Retire { name },
    25 => Forget { kind, name },
    26 => Write(write),
}

wire_enum! { NativeAnswer, "native answer":
    1 => Done,
    2 => Opened { session, ttl_ms },
    3 => Place { place, token, ahead },
    4 => Left { token },
    5 => Entered { place, generation, missing },
    6 => Leaving { generation, inside },
    7 => Pledged { pledge },
    8 => Latch { left },
    9 => Registered { party, phase },
    10 => Arrived { phase, now },
    11 => Counter { before, after },
    12 => Version { reader, version, oldest },
    13 => Protected { place, epoch },
    14 => Retired { epoch, clear },
}

wire_enum! { NativeError, "native error":
    1 => UnknownSession,
    2 => RequestForgotten { acknowledged },
    3 => TooManyUnacknowledged,
    4 => BadName,
    5 => DataTooLarge,
    6 => TtlOutOfRange,
    7 => WrongKind,
    8 => Busy { token },
    9 => QueueFull { waiting },
    10 => TooManyHoldings,
    11 => StaleToken { token },
    12 => NotHolder { token },
    13 => Fenced { token, highest },
    14 => ForgedToken { token },
    15 => NoSuchPlace { place },
    16 => NotFound,
    17 => InUse,
    18 => Differs { made },
    19 => BadWeight { permits },
    20 => BadCount,
    21 => BarrierOpen,
    22 => BarrierShut,
    23 => Broken,
    24 => AlreadyArrived { phase },
    25 => NestedTooDeep,
    26 => Overflow,
    27 => Mismatch { actual },
    28 => BadVersion { least, most },
    29 => Retiring { epoch },
    30 => NoSuccessor,
    31 => LatchOpen,
    32 => BadWrite,
    33 => KeyChanged { condition, modified },
    34 => NumberReused,
}

wire_enum! { Stored, "native record":
    1 => Semaphore(semaphore),
    2 => Barrier(barrier),
    3 => Latch { on_death, gate },
    4 => LatchCount { left, of },
    5 => Phaser(phaser),
    6 => PhaserTally(tally),
    7 => Party { parties, arrived, phase },
    8 => Counter { value },
    9 => Fence { highest },
    10 => Rcu { version, oldest },
    11 => RcuData(data),
    12 => Hazard { epoch, stage },
}
// The first two were a flag.
wire_enum! { HazardStage, "stage of a hazard":
    0 => Alive,
    1 => Retiring,
    2 => Retired,
}
wire_struct! { Semaphore: permits, used, granted_to }
wire_struct! { Barrier: parties, expected, double, on_death, gate }
wire_struct! { Phaser: phase, on_death, broken, parent }
wire_struct! { PhaserTally: registered, arrived, phase }

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
