//! Downgrade: there is no older version that could take over from this one, and that is what is said.
//!
//! etcd allows the minor version before its own; our data is not in a format that one could read. Way back
//! out is by snapshot. Nothing is ever under way, so there is nothing to cancel either, which etcd 3.7
//! answers with the present version.

use tidelock_etcd_api::etcdserverpb::downgrade_request::DowngradeAction;
use tidelock_etcd_api::etcdserverpb::{DowngradeRequest, DowngradeResponse, ResponseHeader};

use crate::error_map::FaceError;
use crate::maintenance::ETCD_VERSION;

/// The verdict on a request, with the header of its answer.
pub fn downgrade_to_response(
    request: &DowngradeRequest,
    header: ResponseHeader,
) -> Result<DowngradeResponse, FaceError> {
    match DowngradeAction::try_from(request.action).map_err(|_| FaceError::UnknownMethod)? {
        DowngradeAction::Validate | DowngradeAction::Enable if is_version(&request.version) => {
            Err(FaceError::InvalidDowngradeTarget)
        }
        DowngradeAction::Validate | DowngradeAction::Enable => Err(FaceError::WrongDowngradeVersion),
        DowngradeAction::Cancel => {
            let minor = ETCD_VERSION.rsplit_once('.').map_or(ETCD_VERSION, |(minor, _patch)| minor);
            Ok(DowngradeResponse { header: Some(header), version: minor.to_owned() })
        }
    }
}

/// `3.6` or `3.6.1`, with whatever semantic versioning lets follow.
fn is_version(text: &str) -> bool {
    let numbers = text.split_once('+').map_or(text, |(before, _)| before);
    let numbers = numbers.split_once('-').map_or(numbers, |(before, _)| before);
    let parts: Vec<&str> = numbers.split('.').collect();
    (2..=3).contains(&parts.len()) && parts.iter().all(|part| part.parse::<i64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(action: DowngradeAction, version: &str) -> Result<String, FaceError> {
        let request = DowngradeRequest { action: action.into(), version: version.to_owned() };
        downgrade_to_response(&request, ResponseHeader::default()).map(|response| response.version)
    }

    /// A script that checks before it downgrades must stop here, not after the data became unreadable.
    #[test]
    fn no_version_is_accepted_as_a_target() {
        for version in ["3.6", "3.6.0", "3.7.0", "2.0.0-rc.1+x"] {
            assert_eq!(verdict(DowngradeAction::Validate, version), Err(FaceError::InvalidDowngradeTarget));
            assert_eq!(verdict(DowngradeAction::Enable, version), Err(FaceError::InvalidDowngradeTarget));
        }
        for nonsense in ["", "3", "v3.6", "3.6.", "3.6.1.2"] {
            assert_eq!(verdict(DowngradeAction::Validate, nonsense), Err(FaceError::WrongDowngradeVersion));
        }
        assert_eq!(verdict(DowngradeAction::Cancel, ""), Ok("3.7".to_owned()));
    }
}
