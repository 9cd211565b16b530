//! `tidelock member list|add|remove|promote|transfer`, through the admin API.

use serde_json::json;

use crate::admin_api::{AddMember, MemberList, MemberReport, parse_hex};
use crate::admin_client::{self, AdminUrl, CallError};
use crate::cli::{AdminArgs, MemberAction, MemberArgs, Output};
use crate::failure::Failure;
use crate::output::{Printer, table};

pub(crate) async fn member(args: &MemberArgs) -> Result<(), Failure> {
    let printer = Printer::new(args.admin.output);
    let (url, list) = first_reachable(&args.admin).await?;
    match &args.action {
        MemberAction::List => print(&printer, &list),
        MemberAction::Add { peer_address, name, voter } => {
            let request = AddMember { peer_address: peer_address.clone(), name: name.clone(), learner: !voter };
            let added = admin_client::add_member(&url, &request).await.map_err(|error| failure(&error))?;
            if printer.format == Output::Json {
                return Ok(printer.json(&json!(added))?);
            }
            printer.line(&format!("member {} added", added.id))?;
            Ok(printer.line(&format!(
                "start it with: tidelock serve --join {url} --peer-listen {peer_address} --name NAME --data-dir DIR"
            ))?)
        }
        MemberAction::Remove { member } => {
            let id = find(&list, member)?.id.clone();
            print(&printer, &admin_client::remove_member(&url, &id).await.map_err(|error| failure(&error))?)
        }
        MemberAction::Promote { member } => {
            let id = find(&list, member)?.id.clone();
            print(&printer, &admin_client::promote(&url, &id).await.map_err(|error| failure(&error))?)
        }
        MemberAction::Transfer { member } => {
            let id = find(&list, member)?.id.clone();
            print(&printer, &admin_client::transfer_leadership(&url, &id).await.map_err(|error| failure(&error))?)
        }
    }
}

/// The first of the given nodes that answers, and the members it knows. A change is then sent to that
/// one alone: sent to several, it could be made twice.
async fn first_reachable(args: &AdminArgs) -> Result<(AdminUrl, MemberList), Failure> {
    let mut last = None;
    for url in parse_urls(args)? {
        match admin_client::members(&url).await {
            Ok(list) => return Ok((url, list)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| Failure::usage("no admin address is given"), |error| failure(&error)))
}

/// The admin addresses the user gave.
pub(super) fn parse_urls(args: &AdminArgs) -> Result<Vec<AdminUrl>, Failure> {
    let parse = |text: &String| {
        AdminUrl::parse(text)
            .map_err(|why| Failure::usage(format!("--admin: {text:?} {why}")).hint("use http://host:7480"))
    };
    args.admin.iter().map(parse).collect()
}

fn failure(error: &CallError) -> Failure {
    Failure::new(error.to_string()).hint(error.hint())
}

/// By id, or by a name that only one member has.
fn find<'a>(list: &'a MemberList, wanted: &str) -> Result<&'a MemberReport, Failure> {
    let hint = "use an id from `tidelock member list`";
    let named: Vec<&MemberReport> = list.members.iter().filter(|member| member.name == wanted).collect();
    match named.as_slice() {
        [member] => return Ok(member),
        [] => {}
        _ => return Err(Failure::usage(format!("several members are called {wanted:?}")).hint(hint)),
    }
    let id = parse_hex(wanted);
    list.members
        .iter()
        .find(|member| id.is_some() && parse_hex(&member.id) == id)
        .ok_or_else(|| Failure::usage(format!("there is no member {wanted:?}")).hint(hint))
}

fn print(printer: &Printer, list: &MemberList) -> Result<(), Failure> {
    if printer.format == Output::Json {
        return Ok(printer.json(&json!(list))?);
    }
    let dash = |list: &[String]| if list.is_empty() { "-".to_owned() } else { list.join(",") };
    let mut rows = vec![["ID", "NAME", "ROLE", "PEER", "CLIENTS"].map(str::to_owned).to_vec()];
    for member in &list.members {
        let name = if member.name.is_empty() { "-".to_owned() } else { member.name.clone() };
        let role = if member.leader { "leader".to_owned() } else { member.role.clone() };
        rows.push(vec![member.id.clone(), name, role, dash(&member.peer_addresses), dash(&member.client_urls)]);
    }
    Ok(printer.line(&table(&rows))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> MemberList {
        let member = |id: &str, name: &str| MemberReport {
            id: id.into(),
            name: name.into(),
            peer_addresses: vec![],
            client_urls: vec![],
            role: "voter".into(),
            leader: false,
        };
        MemberList { cluster: "1".into(), members: vec![member("a1", "a"), member("b1", "b"), member("c1", "b")] }
    }

    /// `member remove` takes what it is given; a name that means two members must not remove one of them.
    #[test]
    fn a_member_is_found_by_id_or_by_a_name_only_it_has() {
        assert_eq!(find(&list(), "a").unwrap().id, "a1");
        assert_eq!(find(&list(), "0xB1").unwrap().id, "b1");
        assert!(find(&list(), "b").is_err());
        assert!(find(&list(), "zz").is_err());
        assert!(find(&list(), "0").is_err());
    }
}
