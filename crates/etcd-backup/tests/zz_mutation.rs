//! Temporary.
#![allow(clippy::unwrap_used)]
use tidelock_etcd_backup::*;
#[test]
fn w() {
    for count in (4000..9400).step_by(10) {
        let mut writer = BackupWriter::create(std::path::Path::new(&format!("{}/{count}", std::env::var("MUT").unwrap()))).unwrap();
        let last = count + 1;
        for main in 2..=last {
            let (key, create_revision, version) = (format!("/key/{}", main % 2).into_bytes(), 2 + main % 2, main / 2);
            let value = vec![b'v'; if main % 1000 == 7 { 50_000 } else { 60 }];
            let kind = match main % 5 {
                0 => ChangeKind::Delete { key: b"/sometimes".to_vec() },
                _ => ChangeKind::Put(KeyRecord { key, create_revision, mod_revision: main, version, value, lease: 7 }),
            };
            writer.push(&Change { revision: Revision { main, sub: 0 }, kind }).unwrap();
        }
        writer.push_lease(&Lease { id: 7, ttl_s: 5000, remaining_ttl_s: 0 }).unwrap();
        writer.finish(&MemberState::default()).unwrap();
    }
}
