//! A node's ZooKeeper face on a simulated machine: the production code, on virtual time.
//!
//! Its own clock is virtual time itself: it neither drifts nor jumps. What it measures by it (how long it has not
//! reached the leader) leaves far more room than the few percent by which other clocks here go wrong.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidelock_coordinator::Coordinator;
use tidelock_face_zookeeper::{FaceConfig, Outside, Secret, ZookeeperFace};
use tidelock_model::NodeId;

use crate::doors::{Doors, within};
use crate::executor::{Clock, Spawner};
use crate::history::Micros;
use crate::random::Random;

/// The unit of time of all faces. Short, so that sessions end within a run.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// The largest packet; a few requests of every run are larger.
pub(crate) const MAX_FRAME: usize = 80 << 10;
/// How often containers are looked at.
const REAP: Duration = Duration::from_secs(3);

/// What a face takes from its machine.
pub(crate) struct SimulatedOutside {
    clock: Clock,
    random: Mutex<Random>,
}

impl SimulatedOutside {
    pub(crate) fn new(clock: Clock, seed: u64, boot: u64) -> SimulatedOutside {
        let random = Random::new(seed).fork_numbered("zookeeper face", boot);
        SimulatedOutside { clock, random: Mutex::new(random) }
    }
}

fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX / 2)
}

impl Outside for SimulatedOutside {
    fn now(&self) -> Duration {
        Duration::from_micros(self.clock.now())
    }

    fn sleep(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.clock.sleep(micros(time)))
    }

    fn draw_secret(&self) -> Secret {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let mut secret = Secret::default();
        secret.iter_mut().for_each(|byte| *byte = random.below(256).try_into().unwrap_or(1));
        secret
    }
}

/// Has a node that just started serve ZooKeeper's clients.
pub(crate) fn start(
    doors: &Doors,
    node: NodeId,
    coordinator: Arc<dyn Coordinator>,
    outside: SimulatedOutside,
    spawner: &Spawner,
) {
    let config = FaceConfig {
        reap_interval: REAP,
        connections_per_address: 0,
        max_frame: MAX_FRAME,
        ..FaceConfig::with_tick(TICK)
    };
    let face = ZookeeperFace::on(Arc::new(outside), coordinator, config);
    let Some(room) = doors.open_zookeeper(node, face.clone()) else { return };
    for chore in face.chores() {
        let room = room.clone();
        spawner.spawn(async move {
            // Ends with the node, like everything in it.
            let _ = within(&room, chore).await;
        });
    }
}
